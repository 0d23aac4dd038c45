"""Stochastic positional encoding end to end; its templates and codes are tested on their own."""

import copy
import math

import pytest
import torch
from scipy import stats
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode

import topomask as tm
from topomask.nn import StochasticPositionEncoding
from topomask.nn import stochastic_position as module

KINDS = {"sine": dict(kind="sine", num_sines=2), "conv": dict(kind="conv", kernel_size=3)}
FALSE_FAIL_RATE = 1e-6


def encoding(kind: str, head_dim: int = 3, num_heads: int = 2, **options) -> StochasticPositionEncoding:
    """Parameters of both signs, in float64, in evaluation."""
    options = {"num_realizations": 5, "seed": 1} | KINDS[kind] | options
    layer = StochasticPositionEncoding(head_dim, num_heads, **options).double().eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(2.0 * noise - 1.0 if "frequencies" in name else noise)
    return layer


def inputs(length: int = 7, batch: int = 2, num_heads: int = 2, head_dim: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    q, k = torch.randn(2, batch, num_heads, length, head_dim, generator=generator, dtype=torch.float64)
    return q, k


def z_scores(layer: StochasticPositionEncoding, truth_of: StochasticPositionEncoding) -> torch.Tensor:
    """Fixed functionals of all scores; columns of noise are independent, so each is a sample."""
    q, k = inputs()
    with torch.no_grad():
        q_hat, k_hat = layer(q, k)
        lags = torch.arange(7)[:, None] - torch.arange(7)
        templates = truth_of.template(lags.flatten()).unflatten(-1, lags.shape)
        exact = torch.einsum("bhmd,bhnd,hdmn->bhmn", q, k, templates)
    generator = torch.Generator().manual_seed(5)
    u, v = torch.randn(2, 8, 7, generator=generator, dtype=torch.float64)
    samples = torch.einsum("fm,bhmr,fn,bhnr->rbhf", u, q_hat, v, k_hat).flatten(1) * layer.num_realizations
    truth = torch.einsum("fm,bhmn,fn->bhf", u, exact, v).flatten()
    return ((samples.mean(0) - truth) / (samples.std(0) / len(samples) ** 0.5)).abs()


def threshold(count: int, num_samples: int) -> float:
    return float(stats.t.isf(FALSE_FAIL_RATE / (2 * count), num_samples - 1))


def negate_phases(layer: StochasticPositionEncoding) -> None:
    layer.templates.phases.data.neg_()


def forget_gate(layer: StochasticPositionEncoding) -> None:
    layer.templates.gate = None


def swap_filters(layer: StochasticPositionEncoding) -> None:
    templates = layer.templates
    templates.query_filter, templates.key_filter = templates.key_filter, templates.query_filter


@pytest.mark.parametrize(
    ("kind", "mistakes"), [("sine", [negate_phases, forget_gate]), ("conv", [swap_filters, forget_gate])]
)
def test_scores_are_unbiased(kind, mistakes):
    """E[q_hat . k_hat] = sum_d q_d k_d P_d(m - n), at a false-fail rate of 1e-6; layers with a mistake must fail."""
    layer = encoding(kind, num_realizations=20_000)
    scores = z_scores(layer, layer)
    limit = threshold(len(scores), 20_000)
    assert scores.max() < limit
    for mistake in mistakes:
        wrong = copy.deepcopy(layer)
        mistake(wrong)
        assert z_scores(wrong, layer).max() > 1.5 * limit, mistake.__name__


@pytest.mark.parametrize("kind", KINDS)
def test_scores_depend_on_lags_alone(kind):
    """The same tokens further on in the sequence have other codes, but scores of the same expectation."""
    layer = encoding(kind, num_realizations=20_000)
    q, k = inputs(batch=1)
    with torch.no_grad():
        here, there = (torch.einsum("bhmr,bhnr->bhmnr", *layer(q, k, first_position=p)) for p in (0, 1000))
    assert not torch.allclose(here, there)
    difference = (here - there) * 20_000
    scores = difference.mean(-1) / (difference.std(-1) / 20_000**0.5)
    # Both are means of the same columns, which are independent of each other.
    assert scores.abs().max() < threshold(scores.numel(), 20_000)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gated", [True, False])
def test_gradients(kind, gated):
    layer = encoding(kind, gated=gated)
    q, k = (x[:1, :, :4].clone().requires_grad_() for x in inputs())
    parameters = list(layer.parameters())
    assert len(parameters) == (3 if kind == "sine" else 2) + gated
    assert gradcheck(lambda q, k, *_: layer(q, k), (q, k, *parameters))


def test_noise_is_new_in_training_and_fixed_in_evaluation():
    layer = encoding("sine")
    q, k = inputs()
    for a, b in zip(layer(q, k), layer(q, k), strict=True):
        assert torch.equal(a, b)
    layer.train()
    assert not torch.allclose(layer(q, k)[0], layer(q, k)[0])
    torch.manual_seed(6)
    first = layer(q, k)
    torch.manual_seed(6)
    assert torch.equal(first[1], layer(q, k)[1])
    assert torch.equal(layer(q, k, seed=layer.seed)[0], layer.eval()(q, k)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_layers_share_a_draw(kind):
    first, second = encoding(kind).train(), encoding(kind, seed=2).train()
    draw = first.draw(torch.Generator().manual_seed(0))
    assert torch.equal(draw, second.draw(torch.Generator().manual_seed(0)))
    q, k = inputs()
    for a, b in zip(first(q, k, seed=draw), second(q, k, seed=int(draw)), strict=True):
        assert torch.equal(a, b)
    assert not torch.allclose(first(q, k)[0], second(q, k)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_of_a_batch_share_the_noise_and_do_not_mix(kind):
    layer = encoding(kind)
    q, k = inputs(batch=3)
    together = layer(q, k)
    for row in range(3):
        for a, b in zip(together, layer(q[row], k[row]), strict=True):
            torch.testing.assert_close(a[row], b, rtol=1e-12, atol=1e-12)
    empty = layer(q[:0], k[:0])
    assert empty[0].shape == (0, 2, 7, 5)
    assert layer(q[:, :, :0], k[:, :, :0])[1].shape == (3, 2, 0, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_a_sequence_and_chunks_agree_with_the_whole(kind, monkeypatch):
    layer = encoding(kind)
    q, k = (x.requires_grad_() for x in inputs(length=40, batch=1))
    whole = layer(q, k)
    part = layer(q[:, :, 9:20], k[:, :, 9:12], first_position=9)
    torch.testing.assert_close(part[0], whole[0][:, :, 9:20], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(part[1], whole[1][:, :, 9:12], rtol=1e-12, atol=1e-12)
    leaves = [q, k, *layer.parameters()]
    expected = torch.autograd.grad(sum(x.square().sum() for x in whole), leaves)
    monkeypatch.setattr(module, "_ELEMENTS_PER_CHUNK", 1)
    chunked = layer(q, k)
    for a, b in zip(chunked, whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    found = torch.autograd.grad(sum(x.square().sum() for x in chunked), leaves)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    short = layer(q, k[:, :, :3])
    torch.testing.assert_close(short[1], whole[1][:, :, :3], rtol=1e-12, atol=1e-12)


class Largest(TorchDispatchMode):
    """Numbers in the largest tensor that any operation gives."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.size = max(self.size, tensor.numel())
        return out


@pytest.mark.parametrize("kind", KINDS)
def test_codes_are_never_formed_as_a_whole(kind, monkeypatch):
    """Forward and backward, no tensor comes near the N D R numbers of a code."""
    monkeypatch.setattr(module, "_ELEMENTS_PER_CHUNK", 1 << 15)
    layer = encoding(kind, head_dim=16, num_heads=1, num_realizations=32)
    q, k = (x.requires_grad_() for x in inputs(length=2000, batch=1, num_heads=1, head_dim=16))
    with Largest() as largest:
        sum(x.sum() for x in layer(q, k)).backward()
    assert largest.size <= 2000 * 16 * 32 / 8


def test_fewer_key_heads_than_query_heads():
    layer = encoding("sine", num_heads=4)
    q, k = inputs(num_heads=4)
    k = k[:, ::2]
    expected = layer(q, k.repeat_interleave(2, dim=1))
    for a, b in zip(layer(q, k), expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_autocast(kind, dtype):
    layer = encoding(kind).float()
    q, k = (x.float() for x in inputs())
    expected = layer(q, k)
    half = layer(q.to(dtype), k.to(dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = layer(q, k)
    for a, b, c in zip(half, expected, cast, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a.float(), b, rtol=0.05, atol=0.05)
        assert torch.equal(b, c)
    assert copy.deepcopy(layer).half()(q, k)[0].isfinite().all()


def test_checkpoint_restores_the_noise_of_evaluation():
    trained, fresh = encoding("conv", seed=3), encoding("conv", seed=4)
    q, k = inputs()
    assert not torch.equal(trained(q, k)[0], fresh(q, k)[0])
    fresh.load_state_dict(trained.state_dict())
    assert torch.equal(trained(q, k)[0], fresh(q, k)[0])
    assert sum(buffer.numel() for buffer in trained.buffers()) == 1, "its seed alone is handed to other processes"


@pytest.mark.parametrize("kind", KINDS)
def test_compiles_in_one_graph(kind):
    torch._dynamo.reset()
    layer = encoding(kind)
    leaves = [*(x.requires_grad_() for x in inputs()), *layer.parameters()]
    run = torch.compile(lambda q, k: layer(q, k), fullgraph=True, backend="aot_eager")
    found = []
    for call in (run, layer):
        out = call(*leaves[:2])
        found.append([*out, *torch.autograd.grad(sum(x.square().sum() for x in out), leaves)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_compiled_layers_draw_new_noise_in_every_call():
    torch._dynamo.reset()
    layer = encoding("sine").train()
    run = torch.compile(layer, fullgraph=True, backend="aot_eager")
    q, k = inputs()
    with torch.no_grad():
        assert not torch.allclose(run(q, k)[0], run(q, k)[0])


def test_linear_attention_sees_the_lag():
    """With one frequency and no gate, identity features attend as if scores were q . k cos(2 pi f (m - n))."""
    layer = StochasticPositionEncoding(4, num_realizations=50_000, num_sines=1, gated=False, seed=0).double().eval()
    torch.nn.init.zeros_(layer.templates.raw_frequencies)
    q, k, v = torch.rand(3, 1, 1, 6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = tm.DenseMask(torch.ones(6, 6, dtype=torch.float64))
    out = tm.masked_attention(*layer(q, k), v, mask, feature_map="identity", normalizer="none")
    lag = torch.arange(6)[:, None] - torch.arange(6)
    expected = (q @ k.mT * torch.cos(2 * math.pi * 0.25 * lag)) @ v
    torch.testing.assert_close(out, expected, rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(head_dim=0), "head_dim"),
        (dict(num_heads=0), "num_heads"),
        (dict(num_realizations=0), "num_realizations"),
        (dict(kind="cosine"), "kind"),
        (dict(kind="conv", num_sines=2), "num_sines"),
        (dict(seed="one"), "seed"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        StochasticPositionEncoding(**(dict(head_dim=4) | options))


@pytest.mark.parametrize(
    ("q", "k", "message"),
    [
        ((1, 2, 5, 4), (1, 2, 5, 3), "`q` must have shape"),
        ((1, 2, 5, 3), (5, 3), "`k` must have shape"),
        ((1, 4, 5, 3), (1, 2, 5, 3), "num_heads=2"),
        ((1, 2, 5, 3), (1, 3, 5, 3), "divisor"),
        ((1, 2, 5, 3), (2, 2, 5, 3), "match in batch"),
    ],
)
def test_bad_input_is_named(q, k, message):
    with pytest.raises(ValueError, match=message):
        encoding("sine")(torch.zeros(q), torch.zeros(k))
