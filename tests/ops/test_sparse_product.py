"""Sparse products: the compiled kernels against the reference and against dense matrices."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from helpers.graphs import ragged_graph, star_graph
from helpers.mask_cases import CASES
from helpers.mask_cases.walks import walk_mask
from topomask.ops.sparse_product import make_pattern, numba, reference, sddmm, spmm

PATTERNS = {
    "ragged": lambda: walk_mask(ragged_graph(), num_heads=2).on().entries().pattern,
    "star": lambda: walk_mask(star_graph(40)).on().entries().pattern,
    "rectangular": lambda: CASES["selected_asymmetric"]().on().entries().pattern,
    "empty": lambda: make_pattern(torch.zeros(4, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), 5),
}


def dense(pattern, values):
    out = values.new_zeros(pattern.shape)
    rows = torch.repeat_interleave(torch.arange(pattern.shape[0]), pattern.row_ptr.diff())
    return out.index_put((rows, pattern.columns.long()), values)


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [0, 1, 5, 2100])
def test_products(name, dtype, width):
    pattern = PATTERNS[name]()
    values = torch.randn(len(pattern.columns), dtype=dtype)
    rows, columns = pattern.shape
    a, b = torch.randn(rows, width, dtype=dtype), torch.randn(width, columns, dtype=dtype).mT
    matrix = dense(pattern, values)
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-11}
    torch.testing.assert_close(spmm(pattern, values, b), matrix @ b, **tolerance)
    torch.testing.assert_close(spmm(pattern, values, a, transpose=True), matrix.mT @ a, **tolerance)
    entries = (pattern.row_ptr, pattern.columns)
    products = [backend.spmm(*entries, values[None], b[None]) for backend in (numba, reference)]
    torch.testing.assert_close(*products, **tolerance)
    samples = [backend.sddmm(*entries, a[None], b[None]) for backend in (numba, reference)]
    torch.testing.assert_close(*samples, **tolerance)


@pytest.mark.parametrize("name", PATTERNS)
def test_index_by_columns(name):
    pattern = PATTERNS[name]()
    for backend in (numba, reference):
        rows, order = backend.by_column(pattern.row_ptr, pattern.columns, pattern.column_ptr)
        assert torch.equal(rows, pattern.rows)
        assert torch.equal(order, pattern.order)
    assert pattern.columns.dtype == pattern.rows.dtype == pattern.order.dtype == torch.int32


@pytest.mark.parametrize("transpose", [False, True])
def test_gradcheck(transpose):
    pattern = PATTERNS["rectangular"]()
    values = torch.randn(len(pattern.columns), dtype=torch.float64, requires_grad=True)
    rows, columns = pattern.shape
    a, b = (torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (rows, columns))
    assert gradcheck(lambda w, x: spmm(pattern, w, x, transpose), (values, a if transpose else b))
    assert gradcheck(lambda x, y: sddmm(pattern, x, y), (a, b))


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("transpose", [False, True])
def test_heads_may_share_a_pattern(name, backend, dtype, transpose, monkeypatch):
    monkeypatch.setenv("TOPOMASK_BACKEND", backend)
    pattern = PATTERNS[name]()
    rows, columns = pattern.shape
    values = torch.randn(3, len(pattern.columns), dtype=dtype, requires_grad=True)
    a, b = (torch.randn(3, 5, n, dtype=dtype).mT.requires_grad_() for n in (rows, columns))
    x = a if transpose else b
    found = [spmm(pattern, values, x, transpose), sddmm(pattern, a, b)]
    expected = [
        torch.stack([spmm(pattern, *one, transpose) for one in zip(values, x, strict=True)]),
        torch.stack([sddmm(pattern, *one) for one in zip(a, b, strict=True)]),
    ]
    leaves = [(values, x), (a, b)]
    for ours, theirs, inputs in zip(found, expected, leaves, strict=True):
        torch.testing.assert_close(ours, theirs)
        weights = torch.randn_like(ours)
        grads = [torch.autograd.grad((out * weights).sum(), inputs) for out in (ours, theirs)]
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other)


def test_shared_patterns_are_differentiable_twice():
    pattern = PATTERNS["rectangular"]()
    values = torch.randn(2, len(pattern.columns), dtype=torch.float64, requires_grad=True)
    x = torch.randn(2, pattern.shape[1], 3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda w, x: spmm(pattern, w, x), (values, x))
    assert gradgradcheck(lambda w, x: spmm(pattern, w, x), (values, x))


def test_shapes_that_do_not_fit_are_refused():
    pattern = PATTERNS["rectangular"]()
    values, (_, columns) = torch.randn(2, len(pattern.columns)), pattern.shape
    for x in (
        torch.randn(columns, 3),
        torch.randn(3, columns, 3),
        torch.randn(2, columns + 1, 3),
        torch.randn(columns),
    ):
        with pytest.raises(ValueError, match=rf"`x` must have shape \[2, {columns}, C\].*but has shape"):
            spmm(pattern, values, x)
