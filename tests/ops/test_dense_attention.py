import pytest
import torch

from topomask.ops import dense_attention as module
from topomask.ops.dense_attention import Attention, _dense_attention, dense_attention


def inputs(weight_heads: int = 2, batch: int = 5) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.rand(batch, 2, size, 3, generator=generator, dtype=torch.float64) for size in (4, 6))
    v = torch.randn(batch, 2, 6, 7, generator=generator, dtype=torch.float64)
    weights = torch.randn(weight_heads, 4, 6, generator=generator, dtype=torch.float64)
    return tuple(x.requires_grad_() for x in (q, k, v, weights, weights.detach().abs()))


def formula(q, k, v, weights, magnitudes, normalize):
    scores = q @ k.mT
    numerator = (scores * weights) @ v
    if not normalize:
        return numerator
    return numerator / (scores * (weights if magnitudes is None else magnitudes)).sum(dim=-1, keepdim=True)


@pytest.mark.parametrize("weight_heads", [2, 1])
@pytest.mark.parametrize("own_magnitudes", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("scores_per_chunk", [1, 2 * 48, 1 << 20])
def test_equals_the_formula_with_gradients(monkeypatch, weight_heads, own_magnitudes, normalize, scores_per_chunk):
    """One input at a time, two, with a remainder, and all at once."""
    monkeypatch.setattr(module, "_SCORES_PER_CHUNK", scores_per_chunk)
    leaves = inputs(weight_heads)
    used = leaves if own_magnitudes and normalize else leaves[:4]
    magnitudes = leaves[4] if own_magnitudes else None
    found, expected = (
        dense_attention(*leaves[:4], magnitudes, normalize=normalize),
        formula(*leaves[:4], magnitudes, normalize),
    )
    torch.testing.assert_close(found, expected)
    for one, other in zip(*(torch.autograd.grad(x.square().sum(), used) for x in (found, expected)), strict=True):
        torch.testing.assert_close(one, other)


def test_opcheck():
    q, k, v, weights, magnitudes = inputs(batch=2)
    for own in (magnitudes, None):
        for normalize in (True, False):
            _dense_attention.check(Attention(q, k, v, weights, own, normalize))


def test_frozen_masks_get_no_gradient():
    q, k, v, weights, _ = inputs()
    out = dense_attention(q, k, v, weights.detach())
    expected = formula(q, k, v, weights.detach(), None, True)
    for one, other in zip(*(torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (out, expected)), strict=True):
        torch.testing.assert_close(one, other)


def test_rows_without_weights_give_zero_with_zero_gradient():
    q, k, v, weights, _ = inputs()
    with torch.no_grad():
        weights[:, 1] = 0.0
    out = dense_attention(q, k, v, weights)
    assert out[:, :, 1].eq(0).all()
    gradients = torch.autograd.grad(out[:, :, 1].sum(), (q, k, v, weights))
    assert all(gradient.eq(0).all() for gradient in gradients)


def test_inputs_in_any_layout():
    q, k, v, weights, _ = inputs()
    turned = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    found, expected = dense_attention(*turned, weights), dense_attention(q, k, v, weights)
    assert torch.equal(found, expected)
    gradients = [
        torch.autograd.grad(found.square().sum(), turned),
        torch.autograd.grad(expected.square().sum(), (q, k, v)),
    ]
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


def test_no_inputs_and_no_keys():
    _, _, _, weights, _ = inputs()
    empty = torch.empty(0, 2, 4, 3, dtype=torch.float64)
    assert dense_attention(empty, empty.new_empty(0, 2, 6, 3), empty.new_empty(0, 2, 6, 7), weights).shape == (
        0,
        2,
        4,
        7,
    )
    q = torch.rand(2, 2, 4, 3, dtype=torch.float64)
    out = dense_attention(q, q[:, :, :0], q[:, :, :0], weights[..., :0])
    assert out.eq(0).all()
