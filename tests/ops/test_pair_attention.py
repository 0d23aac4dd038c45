"""The compiled kernel against the reference, forward and backward."""

import gc

import pytest
import torch
from torch.autograd import gradcheck
from torch.library import opcheck

import topomask as tm
from registry import MASKS, ragged_graph, star_graph, walk_mask
from topomask.ops.pair_attention import _pair_attention, numba, pair_attention, reference, tiles

CASES = {
    "ragged": lambda: walk_mask(ragged_graph(), num_heads=2),
    "star": lambda: walk_mask(star_graph(40), max_length=2),
    "grid": lambda: walk_mask(tm.grid_graph(9, 7)),
    "one node": lambda: walk_mask(tm.path_graph(1)),
    "rectangular": MASKS["selected_asymmetric"],
}


def arguments(name: str, dtype: torch.dtype, width: int = 5, depth: int = 3, own: bool = True, batch: int = 2):
    torch.manual_seed(0)
    pattern, values, magnitudes = CASES[name]().entries()
    rows, columns = pattern.shape
    q = torch.randn(batch, width, rows, dtype=dtype).mT
    k, v = torch.randn(batch, columns, width, dtype=dtype), torch.randn(batch, columns, depth, dtype=dtype)
    weights = magnitudes if own else values.new_empty(0)
    return pattern, [x.detach().to(dtype) for x in (values, weights, q, k, v)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("absolute", [True, False])
def test_agrees_with_the_reference(name, dtype, own, absolute):
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-11}
    for width, depth in ((1, 1), (5, 3), (16, 32)):
        pattern, inputs = arguments(name, dtype, width, depth, own)
        found = numba.pair_attention(pattern.row_ptr, pattern.columns, *inputs, absolute)
        expected = reference.pair_attention(pattern.row_ptr, pattern.columns, *inputs, absolute)
        grads = [torch.randn_like(x) for x in expected]
        found += numba.pair_attention_backward(*grads, pattern.row_ptr, pattern.columns, *inputs, absolute)
        expected += reference.pair_attention_backward(*grads, *pattern, *inputs, absolute)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, **tolerance)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("absolute", [True, False])
def test_gradcheck(backend, own, absolute, monkeypatch):
    monkeypatch.setenv("TOPOMASK_BACKEND", backend)
    pattern, inputs = arguments("ragged", torch.float64, own=own)
    inputs = [x.requires_grad_() if x.numel() else x for x in inputs]

    def run(values, magnitudes, q, k, v):
        return pair_attention(pattern, values, magnitudes if own else None, q, k, v, absolute)

    assert gradcheck(run, inputs, fast_mode=True)


@pytest.mark.parametrize("name", ["ragged", "grid", "star", "rectangular"])
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("widths", [(16, 16), (48, 32)])
def test_tiles_agree_with_the_reference(name, own, widths, monkeypatch):
    """Also where rows have little in common, which would go row by row otherwise, and with rows left over."""
    monkeypatch.setattr(tiles, "_MIN_DENSITY", 0.0)
    pattern, inputs = arguments(name, torch.float32, *widths, own)
    layout = tiles.layout(pattern.row_ptr, pattern.columns)
    assert layout is not None
    assert layout.num_rows == pattern.shape[0] // 4 * 4
    found = numba.pair_attention(pattern.row_ptr, pattern.columns, *inputs, False)
    fine = [x.double() for x in inputs]
    expected = reference.pair_attention(pattern.row_ptr, pattern.columns, *fine, False)
    grads = [torch.randn_like(x) for x in found]
    found += numba.pair_attention_backward(*grads, pattern.row_ptr, pattern.columns, *inputs, False)
    expected += reference.pair_attention_backward(*(g.double() for g in grads), *pattern, *fine, False)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=2e-4, atol=2e-4 * float(b.abs().max()) if b.numel() else 0.0)


def test_packed_weights_follow_their_values():
    pattern, (values, *_) = arguments("grid", torch.float32)
    layout = tiles.layout(pattern.row_ptr, pattern.columns)
    packed = tiles.pack(layout, values)
    assert tiles.pack(layout, values) is packed
    values.mul_(2.0)
    torch.testing.assert_close(tiles.pack(layout, values), 2.0 * packed)
    count = len(tiles._packed)
    del values, _
    gc.collect()
    assert len(tiles._packed) < count


def test_layouts_are_kept_as_long_as_their_pattern():
    pattern, _ = arguments("grid", torch.float32)
    assert tiles.layout(pattern.row_ptr, pattern.columns) is tiles.layout(pattern.row_ptr, pattern.columns)
    count = len(tiles._layouts)
    del pattern
    gc.collect()
    assert len(tiles._layouts) < count


def test_opcheck():
    pattern, inputs = arguments("ragged", torch.float64)
    opcheck(_pair_attention, (*pattern, *(x.requires_grad_() for x in inputs), True))


def test_threads_do_not_matter():
    pattern, inputs = arguments("grid", torch.float64)
    grads = [torch.ones_like(x) for x in reference.pair_attention(pattern.row_ptr, pattern.columns, *inputs, True)]
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(numba.pair_attention_backward(*grads, pattern.row_ptr, pattern.columns, *inputs, True))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        for a, b in zip(other, found[0], strict=True):
            torch.testing.assert_close(a, b)
