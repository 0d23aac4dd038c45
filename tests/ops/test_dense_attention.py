import pytest
import torch

from topomask.ops.dense_attention import Attention, _dense_attention, _implementation, dense_attention, reference


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
    monkeypatch.setattr(reference, "_SCORES_PER_CHUNK", scores_per_chunk)
    leaves = inputs(weight_heads)
    used = leaves if own_magnitudes and normalize else leaves[:4]
    magnitudes = leaves[4] if own_magnitudes else None
    found, expected = (
        dense_attention(*leaves[:4], magnitudes, normalize=normalize).out,
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
    out = dense_attention(q, k, v, weights.detach()).out
    expected = formula(q, k, v, weights.detach(), None, True)
    for one, other in zip(*(torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (out, expected)), strict=True):
        torch.testing.assert_close(one, other)


def test_rows_without_weights_give_zero_with_zero_gradient():
    q, k, v, weights, _ = inputs()
    with torch.no_grad():
        weights[:, 1] = 0.0
    out = dense_attention(q, k, v, weights).out
    assert out[:, :, 1].eq(0).all()
    gradients = torch.autograd.grad(out[:, :, 1].sum(), (q, k, v, weights))
    assert all(gradient.eq(0).all() for gradient in gradients)


def test_inputs_in_any_layout():
    q, k, v, weights, _ = inputs()
    turned = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    found, expected = dense_attention(*turned, weights).out, dense_attention(q, k, v, weights).out
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
    assert dense_attention(empty, empty.new_empty(0, 2, 6, 3), empty.new_empty(0, 2, 6, 7), weights).out.shape == (
        0,
        2,
        4,
        7,
    )
    q = torch.rand(2, 2, 4, 3, dtype=torch.float64)
    out = dense_attention(q, q[:, :, :0], q[:, :, :0], weights[..., :0]).out
    assert out.eq(0).all()


# Tokens that fill blocks of 16 and 8, that leave some over, and that are too few for any.
SIZES = [(64, 64), (17, 33), (16, 8), (1, 5), (30, 2)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("weight_heads", [3, 1])
@pytest.mark.parametrize("own_magnitudes", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_kernel_equals_the_formula_with_gradients(size, weight_heads, own_magnitudes, normalize, threads):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.rand(4, n, 3, width, generator=generator).transpose(1, 2)
        for n, width in zip((*size, size[1]), (5, 5, 7), strict=True)
    )
    weights = torch.randn(weight_heads, *size, generator=generator)
    leaves = [x.requires_grad_() for x in (q, k, v, weights, weights.detach().abs() + 0.1)]
    magnitudes = leaves[4] if own_magnitudes else None
    if normalize and not own_magnitudes:
        # Sums that cross zero would compare noise.
        weights.data.abs_()
    used = leaves if own_magnitudes and normalize else leaves[:4]
    assert _implementation(Attention(q, k, v, weights, magnitudes, normalize)).__name__.endswith("numba")
    exact = [x.detach().double().requires_grad_() for x in leaves]
    expected = formula(*exact[:4], exact[4] if own_magnitudes else None, normalize)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = dense_attention(*leaves[:4], magnitudes, normalize=normalize).out
        gradients = torch.autograd.grad(found.square().sum(), used)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    for one, other in zip(gradients, torch.autograd.grad(expected.square().sum(), exact[: len(used)]), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5 * other.abs().max().item())


def test_the_kernel_gives_zero_where_there_is_nothing():
    q, k, v = torch.rand(3, 2, 2, 20, 4).requires_grad_()
    weights = torch.rand(2, 20, 20)
    weights[:, 3] = 0.0
    weights.requires_grad_()
    out = dense_attention(q, k, v, weights).out
    assert out[:, :, 3].eq(0).all()
    assert out.isfinite().all()
    for gradient in torch.autograd.grad(out[:, :, 3].sum(), (q, k, v, weights)):
        assert gradient.eq(0).all()
    assert dense_attention(q[:0], k[:0], v[:0], weights).out.shape == (0, 2, 20, 4)
    assert dense_attention(q, k[:, :, :0], v[:, :, :0], weights[..., :0]).out.eq(0).all()


def test_many_or_wide_tokens_and_float64_go_through_products_of_torch():
    def way(tokens: int, width: int, dtype: torch.dtype = torch.float32) -> str:
        q = torch.rand(1, 1, tokens, width, dtype=dtype)
        weights = torch.rand(1, tokens, tokens, dtype=dtype)
        return _implementation(Attention(q, q, q, weights, None, True)).__name__.rsplit(".", 1)[1]

    assert way(256, 16) == "numba"
    assert way(257, 4) == way(128, 33) == way(8, 8, torch.float64) == "reference"


@pytest.mark.parametrize("wanted", [(0,), (1, 2), (3,), (4,)])
@pytest.mark.parametrize("weight_heads", [2, 1])
def test_the_kernel_gives_the_gradients_that_are_asked_for(wanted, weight_heads):
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.rand(3, 2, 2, 20, 18, generator=generator)
    weights = torch.rand(2, weight_heads, 20, 20, generator=generator)
    leaves = [x.requires_grad_(number in wanted) for number, x in enumerate((q, k, v, *weights.unbind()))]
    exact = [x.detach().double().requires_grad_(number in wanted) for number, x in enumerate(leaves)]
    found = torch.autograd.grad(dense_attention(*leaves).out.square().sum(), [leaves[n] for n in wanted])
    expected = torch.autograd.grad(formula(*exact, True).square().sum(), [exact[n] for n in wanted])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5 * other.abs().max().item())


def test_opcheck_of_the_kernel():
    q, k, v = (torch.rand(1, 1, 9, 4, requires_grad=True) for _ in range(3))
    weights = torch.rand(1, 9, 9, requires_grad=True)
    _dense_attention.check(Attention(q, k, v, weights, None, True))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("k", lambda q, k, v, weights: (q, k[..., :3], v, weights)),
        ("k", lambda q, k, v, weights: (q, k[:1], v[:1], weights)),
        ("v", lambda q, k, v, weights: (q, k, torch.cat([v, v], dim=2), weights)),
        ("weights", lambda q, k, v, weights: (q, k, v, weights[:, :5])),
        ("weights", lambda q, k, v, weights: (q, k, v, weights[[0, 1, 0]])),
    ],
)
def test_shapes_that_do_not_fit_are_named(name, change):
    q, k, v = torch.rand(3, 2, 2, 9, 4)
    with pytest.raises(ValueError, match=f"`{name}`"):
        dense_attention(*change(q, k, v, torch.rand(2, 9, 9)))
