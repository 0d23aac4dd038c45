"""Laws that hold for every mask."""

import math

import pytest
import torch
from torch.autograd import gradcheck

import topomask as tm
from registry import MASKS, MaskFactory
from topomask.planning import plan_attention

EXACT = {"rtol": 1e-9, "atol": 1e-9}
# Two backward passes may differ in the last digits: matrix products round differently in memory that is aligned
# differently. This was seen once in many runs.
CHECK = {"fast_mode": True, "nondet_tol": 1e-12}


@pytest.fixture(params=MASKS.values(), ids=MASKS.keys())
def make_mask(request) -> MaskFactory:
    torch.manual_seed(0)
    return request.param


def inputs(mask: tm.Mask, *, batch: int = 2, width: int = 3, queries: bool = False) -> torch.Tensor:
    """Non-contiguous input of the right shape."""
    size = mask.num_queries if queries else mask.num_keys
    return torch.randn(batch, size, width, mask.num_heads, dtype=torch.float64).permute(0, 3, 1, 2)


def qkv(mask: tm.Mask, *, heads: int | None = None, width: int = 4) -> tuple[torch.Tensor, ...]:
    heads = mask.num_heads if heads is None else heads
    q = torch.randn(2, heads, mask.num_queries, width, dtype=torch.float64)
    k = torch.randn(2, heads, mask.num_keys, width, dtype=torch.float64)
    v = torch.randn(2, heads, mask.num_keys, 5, dtype=torch.float64)
    return q, k, v


def strategies(mask: tm.Mask, kernel: str = "linear") -> list[str]:
    names = ["dense"] + ["features"] * (kernel == "linear")
    return names + ["pairs"] * (mask.num_pairs_bound is not None)


def test_agrees_with_dense(make_mask):
    mask = make_mask()
    x = inputs(mask)
    dense = mask.to_dense()
    assert dense.shape == (mask.num_heads, mask.num_queries, mask.num_keys)
    torch.testing.assert_close(mask @ x, dense @ x, **EXACT)


def test_adjoint(make_mask):
    mask = make_mask()
    x, y = inputs(mask), inputs(mask, queries=True)
    torch.testing.assert_close((mask.matmul(x) * y).sum(), (x * mask.rmatmul(y)).sum(), **EXACT)
    torch.testing.assert_close(mask.rmatmul(y), mask.to_dense().mT @ y, **EXACT)


def test_magnitude_dominates(make_mask):
    mask = make_mask()
    magnitude = mask.magnitude()
    assert (magnitude.to_dense() >= mask.to_dense().abs() - 1e-12).all()
    torch.testing.assert_close(magnitude.magnitude().to_dense(), magnitude.to_dense(), **EXACT)
    x = inputs(mask)
    torch.testing.assert_close(magnitude @ x, magnitude.to_dense() @ x, **EXACT)


def test_entries_are_the_dense_mask(make_mask):
    mask = make_mask()
    if mask.num_pairs_bound is None:
        with pytest.raises(ValueError, match="no sparse entries"):
            mask.entries()
        return
    pattern, values, magnitudes = mask.entries()
    assert pattern.shape == (mask.num_heads * mask.num_queries, mask.num_heads * mask.num_keys)
    assert len(values) <= mask.num_pairs_bound
    rows = torch.repeat_interleave(torch.arange(pattern.shape[0]), pattern.row_ptr.diff())
    for found, expected in ((values, mask), (magnitudes, mask.magnitude())):
        dense = torch.zeros(pattern.shape, dtype=values.dtype).index_put(
            (rows, pattern.columns), found, accumulate=True
        )
        torch.testing.assert_close(dense, torch.block_diag(*expected.to_dense()), **EXACT)


def test_one_column_and_no_column(make_mask):
    mask = make_mask()
    x = inputs(mask, width=1)
    torch.testing.assert_close(mask @ x, mask.to_dense() @ x, **EXACT)
    assert (mask @ x[..., :0]).shape == (2, mask.num_heads, mask.num_queries, 0)


def test_gradients(make_mask):
    mask = make_mask()
    x = inputs(mask, batch=1, width=2).requires_grad_()
    y = inputs(mask, batch=1, width=2, queries=True).requires_grad_()
    parameters = [p for p in mask.parameters() if p.requires_grad]
    assert gradcheck(lambda x, *_: mask @ x, (x, *parameters), **CHECK)
    assert gradcheck(lambda y, *_: mask.rmatmul(y), (y, *parameters), **CHECK)
    if parameters:
        assert gradcheck(lambda *_: mask.to_dense(), parameters, **CHECK)
        assert gradcheck(lambda *_: mask.magnitude().to_dense(), parameters, **CHECK)


def formula(mask: tm.Mask, phi_q, phi_k, v, normalizer: str) -> torch.Tensor:
    """Masked linear attention as it is defined, with every matrix written out."""
    dense, magnitude = mask.to_dense(), mask.magnitude().to_dense()
    scores = phi_q @ phi_k.mT
    numerator = (dense * scores) @ v
    if normalizer == "none":
        return numerator
    denominator = {
        "absolute": magnitude * (phi_q.abs() @ phi_k.abs().mT),
        "signed": dense * scores,
    }[normalizer].sum(-1, keepdim=True)
    return torch.where(denominator == 0, 0.0, numerator / torch.where(denominator == 0, 1.0, denominator))


@pytest.mark.parametrize("normalizer", ["absolute", "signed", "none"])
@pytest.mark.parametrize("feature_map", ["relu", "identity"])
def test_attention_matches_the_formula(make_mask, normalizer, feature_map):
    mask = make_mask()
    q, k, v = qkv(mask, heads=max(2, mask.num_heads))
    phi = torch.relu if feature_map == "relu" else torch.clone
    expected = formula(mask, phi(q), phi(k), v, normalizer)
    # The signed normaliser may come close to zero, where rounding is amplified.
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if normalizer == "signed" else EXACT
    for strategy in strategies(mask):
        out = tm.masked_attention(q, k, v, mask, feature_map=feature_map, normalizer=normalizer, strategy=strategy)
        torch.testing.assert_close(out, expected, **tolerance, msg=lambda text, s=strategy: f"{s}: {text}")


def test_softmax_attention_matches_the_formula(make_mask):
    mask = make_mask()
    q, k, v = qkv(mask, heads=max(2, mask.num_heads))
    powers = torch.exp(q @ k.mT / math.sqrt(q.shape[-1]))
    for normalizer in ("absolute", "signed"):
        weights = mask.magnitude().to_dense() if normalizer == "absolute" else mask.to_dense()
        denominator = (weights * powers).sum(-1, keepdim=True)
        expected = torch.where(denominator == 0, 0.0, (mask.to_dense() * powers) @ v / denominator)
        tolerance = {"rtol": 1e-5, "atol": 1e-6} if normalizer == "signed" else EXACT
        for strategy in strategies(mask, "softmax"):
            out = tm.masked_softmax_attention(q, k, v, mask, normalizer=normalizer, strategy=strategy)
            torch.testing.assert_close(out, expected, **tolerance, msg=lambda text, s=strategy: f"{s}: {text}")


@pytest.mark.parametrize("normalizer", ["absolute", "signed", "none"])
def test_strategies_agree_backward(make_mask, normalizer):
    """Gradients in q, k, v and every parameter are the same by every way."""
    mask = make_mask()
    q, k, v = (x.requires_grad_() for x in qkv(mask, heads=max(2, mask.num_heads)))
    weight = torch.randn(2, q.shape[1], mask.num_queries, 5, dtype=torch.float64)
    # Positive scores keep the signed normaliser away from zero, so that all three ways are well conditioned.
    feature_map = "identity" if normalizer != "signed" else "elu"
    parameters = [p for p in mask.parameters() if p.requires_grad]
    found = {}
    for strategy in strategies(mask):
        out = tm.masked_attention(q, k, v, mask, feature_map=feature_map, normalizer=normalizer, strategy=strategy)
        found[strategy] = torch.autograd.grad((out * weight).sum(), [q, k, v, *parameters])
    scale = {"rtol": 1e-6, "atol": 1e-6} if normalizer == "signed" else EXACT
    for strategy, gradients in found.items():
        for a, b in zip(gradients, found["dense"], strict=True):
            torch.testing.assert_close(a, b, **scale, msg=lambda text, s=strategy: f"{s}: {text}")


@pytest.mark.parametrize("kernel", ["linear", "softmax"])
def test_attention_gradcheck(make_mask, kernel):
    mask = make_mask()
    q, k, v = (x[:1].contiguous().requires_grad_() for x in qkv(mask, width=2))
    attend = tm.masked_attention if kernel == "linear" else tm.masked_softmax_attention
    options = {"feature_map": "elu"} if kernel == "linear" else {}
    parameters = [p for p in mask.parameters() if p.requires_grad]
    for strategy in strategies(mask, kernel):

        def run(q, k, v, *_, strategy=strategy):
            return attend(q, k, v, mask, strategy=strategy, **options)

        assert gradcheck(run, (q, k, v, *parameters), **CHECK), strategy


def test_auto_is_one_of_the_ways(make_mask):
    mask = make_mask()
    q, k, v = qkv(mask)
    plan = plan_attention(mask, 4, 5, batch_size=2)
    assert plan.strategy in strategies(mask)
    assert plan.strategy in str(plan)
    out = tm.masked_attention(q, k, v, mask)
    torch.testing.assert_close(out, tm.masked_attention(q, k, v, mask, strategy=plan.strategy), rtol=0, atol=0)


@pytest.mark.parametrize("name", [name for name in MASKS if not name.startswith("selected")])
def test_state_dict_round_trip(name):
    # A selection is made for one call and never saved.
    mask, other = MASKS[name](), MASKS[name]()
    with torch.no_grad():
        for parameter in mask.parameters():
            parameter.mul_(1.5)
    other.load_state_dict(mask.state_dict())
    torch.testing.assert_close(other.to_dense(), mask.to_dense(), rtol=0, atol=0)
