"""Attention with numbers that leave float32 on the way to a result that does not."""

import pytest
import torch

import topomask as tm

GRAPH = tm.grid_graph(3, 4)


def tokens(scale: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [scale * torch.randn(1, 2, 12, 4, generator=generator) for _ in range(3)]


def walk_mask(scale: float) -> tm.Mask:
    return tm.WalkMask(GRAPH, num_walks=4, max_length=3, num_heads=2, seed=0, f=scale * 0.5 ** torch.arange(4))


def low_rank_mask(scale: float) -> tm.Mask:
    generator = torch.Generator().manual_seed(1)
    return tm.LowRankMask(torch.nn.Parameter(scale * torch.rand(2, 12, 3, generator=generator)))


@pytest.mark.parametrize("strategy", ["pairs", "product", "dense"])
@pytest.mark.parametrize("scale", [1e-26, 1e20])
@pytest.mark.parametrize("make", [walk_mask, low_rank_mask])
@pytest.mark.parametrize("attend", [tm.masked_attention, tm.masked_softmax_attention])
def test_a_constant_factor_of_the_mask_cancels(attend, make, scale, strategy):
    if strategy == "product" and attend is tm.masked_softmax_attention:
        pytest.skip("softmax attention has no products")
    if strategy == "pairs" and make is low_rank_mask:
        pytest.skip("no sparse entries")
    found = []
    for factor in (1.0, scale):
        mask, leaves = make(factor), [x.requires_grad_() for x in tokens()]
        out = attend(*leaves, mask, strategy=strategy)
        grads = torch.autograd.grad(out.square().sum(), [*leaves, *mask.parameters()])
        found.append([out, *grads[:-1], grads[-1] * factor])
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_too_large_for_float32_without_a_mask(dtype):
    q, k, v = tokens()
    q, k = 1e20 * q, 1e20 * k
    mask = tm.AllPairsMask(GRAPH)
    found = tm.masked_softmax_attention(q.to(dtype), k.to(dtype), v.to(dtype), mask)
    exact = [x.to(dtype).double() for x in (q, k, v)]
    expected = torch.softmax(exact[0] @ exact[1].mT / 2.0, dim=-1) @ exact[2]
    torch.testing.assert_close(found.double(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("bias", [-95.0, -110.0, 95.0])
def test_compiled_biases_have_finite_gradients(bias):
    mask = tm.ShortestPathMask(GRAPH, max_distance=2, bias=True, initial=torch.full((3,), bias))
    leaves = [x.requires_grad_() for x in tokens()]
    compiled = torch.compile(tm.masked_softmax_attention, backend="aot_eager", fullgraph=True)
    for run in (tm.masked_softmax_attention, compiled):
        out = run(*leaves, mask)
        grads = torch.autograd.grad(out.square().sum(), [*leaves, mask.weight])
        assert all(x.isfinite().all() for x in (out, *grads))


def test_gradients_of_weights_that_cancel_do_not_become_infinite_on_the_way():
    """Found by the fuzzer: case 14420 of seed 0."""
    mask = tm.VisitMask(GRAPH, num_walks=4, max_length=1, normalize=True, seed=0, f=torch.tensor([0.4, 0.0]))
    q, k, v = tokens()
    k = k * 10.0 ** torch.linspace(-15, 15, 12)[:, None]
    leaves = [q.requires_grad_(), k.requires_grad_(), (1e11 * v).requires_grad_()]
    out = tm.masked_attention(*leaves, mask, strategy="dense")
    (grad,) = torch.autograd.grad(out.sum(), [mask.modulation.weight])
    assert grad.isfinite().all()


def test_slopes_of_zero_entries_beside_small_weights_are_finite():
    """Found by the fuzzer: case 20553 of seed 0."""
    mask = tm.PowerSeriesMask(GRAPH, coefficients=1e-9 * torch.rand(2, 2, dtype=torch.float64))
    q, k, v = tokens(8.0)
    leaves = [q.requires_grad_(), k.requires_grad_(), (1e15 * v).requires_grad_()]
    out = tm.masked_softmax_attention(*leaves, mask)
    grads = torch.autograd.grad(out.sum(), [*leaves, mask.coefficients])
    assert all(x.isfinite().all() for x in grads)
