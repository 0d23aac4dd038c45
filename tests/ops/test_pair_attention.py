"""The compiled kernels against the reference, forward and backward."""

import gc
import itertools

import pytest
import torch
from torch.autograd import gradcheck
from torch.library import opcheck

import topomask as tm
from registry import MASKS, ragged_graph, star_graph, walk_mask
from topomask.ops.pair_attention import _pair_attention, numba, pair_attention, reference
from topomask.ops.tiles import layout

CASES = {
    "ragged": lambda: walk_mask(ragged_graph(), num_heads=2),
    "star": lambda: walk_mask(star_graph(40), max_length=2),
    "grid": lambda: walk_mask(tm.grid_graph(9, 7)),
    "one node": lambda: walk_mask(tm.path_graph(1)),
    "rectangular": MASKS["selected_asymmetric"],
}
# (softmax, absolute, normalize). Softmax attention is normalised, and has no features that could be absolute.
WAYS = [(True, False, True), *((False, *flags) for flags in itertools.product([True, False], repeat=2))]


def arguments(name: str, dtype: torch.dtype, width: int = 5, depth: int = 3, own: bool = True, padded: bool = False):
    torch.manual_seed(0)
    pattern, values, magnitudes = CASES[name]().entries()
    rows, columns = pattern.shape
    q = torch.randn(2, width, rows, dtype=dtype).mT
    k, v = torch.randn(2, columns, width, dtype=dtype), torch.randn(2, columns, depth, dtype=dtype)
    weights = magnitudes if own else values.new_empty(0)
    is_key = torch.rand(2, columns) > 0.3 if padded else torch.empty(0, 0, dtype=torch.bool)
    return pattern, [x.detach().to(dtype) for x in (values, weights, q, k, v)], is_key


def well_conditioned(inputs, own, flags):
    """A normaliser that sums signed numbers can come close to 0, where rounding is amplified: make them positive."""
    softmax, absolute, normalize = flags
    values, weights, q, k, v = inputs
    if normalize and not own:
        values = values.abs() + 0.1
    if normalize and not softmax and not absolute:
        q, k = q.abs(), k.abs()
    return [values, weights, q, k, v]


def both_passes(backend, pattern, inputs, is_key, flags, grad):
    out, denominator = backend.pair_attention(pattern, *inputs, is_key, *flags)
    saved = (out, denominator) if backend is numba else ()
    return out, denominator, *backend.pair_attention_backward(grad, *saved, pattern, *inputs, is_key, *flags)


def assert_agree(pattern, inputs, is_key, flags, tolerance):
    """Compared in float64: sums that cancel are judged by the size of what was summed."""
    grad = torch.randn(*inputs[2].shape[:2], inputs[4].shape[2], dtype=inputs[2].dtype)
    found = both_passes(numba, pattern, inputs, is_key, flags, grad)
    expected = both_passes(reference, pattern, [x.double() for x in inputs], is_key, flags, grad.double())
    for name, a, b in zip(("out", "denominator", "values", "magnitudes", "q", "k", "v"), found, expected, strict=True):
        if name == "denominator" and flags[0]:
            continue  # known up to a factor that cancels
        scale = max(1.0, float(b.abs().max())) if b.numel() else 1.0
        torch.testing.assert_close(
            a.double(), b, rtol=tolerance, atol=tolerance * scale, msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("flags", WAYS)
def test_rows_agree_with_the_reference(name, dtype, own, flags, monkeypatch):
    monkeypatch.setattr(numba, "MIN_ENTRIES_PER_ROW", 10**9)
    for width, depth in ((1, 1), (5, 3), (16, 32)):
        pattern, inputs, is_key = arguments(name, dtype, width, depth, own, padded=flags[0])
        inputs = well_conditioned(inputs, own, flags)
        assert_agree(pattern, inputs, is_key, flags, 1e-4 if dtype == torch.float32 else 1e-10)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("flags", [flags for flags in WAYS if not flags[1]])
@pytest.mark.parametrize("min_lanes", [1, 4, 17])
def test_tiles_agree_with_the_reference(name, own, flags, min_lanes, monkeypatch):
    """Keys taken with all lanes, pair by pair, and both; widths that fill vectors and that do not."""
    monkeypatch.setattr(numba, "MIN_ENTRIES_PER_ROW", 0)
    monkeypatch.setattr(layout, "MIN_LANES", min_lanes)
    for width, depth in ((16, 32), (1, 1), (21, 37)):
        pattern, inputs, is_key = arguments(name, torch.float32, width, depth, own, padded=flags[0])
        inputs = well_conditioned(inputs, own, flags)
        assert numba._layout(pattern, inputs[2], False) is not None
        assert_agree(pattern, inputs, is_key, flags, 2e-4)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("flags", WAYS)
def test_gradcheck(backend, own, flags, monkeypatch):
    monkeypatch.setenv("TOPOMASK_BACKEND", backend)
    softmax, absolute, normalize = flags
    pattern, inputs, is_key = arguments("ragged", torch.float64, own=own, padded=softmax)
    inputs = well_conditioned(inputs, own, flags)
    inputs = [x.requires_grad_() if x.numel() else x for x in inputs]

    def run(values, magnitudes, q, k, v):
        sizes = magnitudes.abs() if own else None
        return pair_attention(
            pattern, values, sizes, q, k, v, is_key=is_key if softmax else None, softmax=softmax, absolute=absolute,
            normalize=normalize,
        )  # fmt: skip

    assert gradcheck(run, inputs, fast_mode=True)


def test_layouts_are_kept_as_long_as_their_pattern(monkeypatch):
    monkeypatch.setattr(numba, "MIN_ENTRIES_PER_ROW", 0)
    pattern, inputs, _ = arguments("grid", torch.float32)
    assert numba._layout(pattern, inputs[2], False) is numba._layout(pattern, inputs[2], False)
    count = len(numba._layouts)
    del pattern
    gc.collect()
    assert len(numba._layouts) < count


def test_the_backward_pass_finds_the_layout_of_the_forward_pass(monkeypatch):
    monkeypatch.setattr(numba, "MIN_ENTRIES_PER_ROW", 0)
    pattern, inputs, _ = arguments("grid", torch.float32)
    made = []
    original = numba.make_layout
    monkeypatch.setattr(numba, "make_layout", lambda *args, **kwargs: made.append(1) or original(*args, **kwargs))
    leaves = [x.requires_grad_() for x in inputs]
    for _ in range(2):
        pair_attention(pattern, *leaves).sum().backward()
    assert len(made) == 1


def test_opcheck():
    pattern, inputs, is_key = arguments("ragged", torch.float64, padded=True)
    for flags in ((False, True, True), (True, False, True)):
        opcheck(_pair_attention, (*pattern, *(x.requires_grad_() for x in inputs), is_key, *flags))


def test_threads_do_not_matter():
    pattern, inputs, is_key = arguments("grid", torch.float64)
    flags = (False, True, True)
    saved = numba.pair_attention(pattern, *inputs, is_key, *flags)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(
                numba.pair_attention_backward(torch.ones_like(saved[0]), *saved, pattern, *inputs, is_key, *flags)
            )
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        for a, b in zip(other, found[0], strict=True):
            torch.testing.assert_close(a, b)


def test_half_precision_is_summed_in_float32():
    pattern, inputs, _ = arguments("grid", torch.float32, 16, 16)
    inputs = well_conditioned(inputs, own=True, flags=(False, False, True))
    expected = pair_attention(pattern, *inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = pair_attention(pattern, *(x.to(torch.bfloat16) for x in inputs))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0.1, atol=0.1)
