"""Sparse products: the compiled kernels against the reference and against dense matrices."""

import pytest
import torch
from torch.autograd import gradcheck

from registry import MASKS, ragged_graph, star_graph, walk_mask
from topomask.ops.sparse_product import make_pattern, numba, reference, sddmm, spmm

CASES = {
    "ragged": lambda: walk_mask(ragged_graph(), num_heads=2).pattern(),
    "star": lambda: walk_mask(star_graph(40)).pattern(),
    "rectangular": lambda: MASKS["selected_asymmetric"]().pattern(),
    "empty": lambda: make_pattern(torch.zeros(4, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), 5),
}


def dense(pattern, values):
    out = values.new_zeros(pattern.shape)
    rows = torch.repeat_interleave(torch.arange(pattern.shape[0]), pattern.row_ptr.diff())
    return out.index_put((rows, pattern.columns.long()), values)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [0, 1, 5, 2100])
def test_products(name, dtype, width):
    pattern = CASES[name]()
    values = torch.randn(len(pattern.columns), dtype=dtype)
    rows, columns = pattern.shape
    a, b = torch.randn(rows, width, dtype=dtype), torch.randn(width, columns, dtype=dtype).mT
    matrix = dense(pattern, values)
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-11}
    torch.testing.assert_close(spmm(pattern, values, b), matrix @ b, **tolerance)
    torch.testing.assert_close(spmm(pattern, values, a, transpose=True), matrix.mT @ a, **tolerance)
    entries = (pattern.row_ptr, pattern.columns)
    torch.testing.assert_close(numba.spmm(*entries, values, b), reference.spmm(*entries, values, b), **tolerance)
    torch.testing.assert_close(numba.sddmm(*entries, a, b), reference.sddmm(*entries, a, b), **tolerance)


@pytest.mark.parametrize("name", CASES)
def test_index_by_columns(name):
    pattern = CASES[name]()
    for backend in (numba, reference):
        rows, order = backend.by_column(pattern.row_ptr, pattern.columns, pattern.column_ptr)
        assert torch.equal(rows, pattern.rows)
        assert torch.equal(order, pattern.order)
    assert pattern.columns.dtype == pattern.rows.dtype == pattern.order.dtype == torch.int32


@pytest.mark.parametrize("transpose", [False, True])
def test_gradcheck(transpose):
    pattern = CASES["rectangular"]()
    values = torch.randn(len(pattern.columns), dtype=torch.float64, requires_grad=True)
    rows, columns = pattern.shape
    a, b = (torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (rows, columns))
    assert gradcheck(lambda w, x: spmm(pattern, w, x, transpose), (values, a if transpose else b))
    assert gradcheck(lambda x, y: sddmm(pattern, x, y), (a, b))
