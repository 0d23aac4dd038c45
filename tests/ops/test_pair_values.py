"""The compiled product of sparse features against the reference, forward and backward."""

import pytest
import torch

import topomask as tm
from registry import ragged_batch, ragged_graph, signed_graph, star_graph, walk_mask
from topomask.ops.pair_values import numba, reference

CASES = {
    "ragged": lambda: walk_mask(ragged_graph(), num_heads=2),
    "batch": lambda: walk_mask(ragged_batch(), num_heads=2),
    "signed": lambda: walk_mask(signed_graph()),
    "star": lambda: walk_mask(star_graph(40), max_length=2),
    "grid": lambda: walk_mask(tm.grid_graph(9, 7)),
    "one node": lambda: walk_mask(tm.path_graph(1)),
    "rectangular": lambda: walk_mask(ragged_graph()).select(torch.tensor([4, 0, 3]), torch.tensor([1, 2, 2, 9])),
    "no queries": lambda: walk_mask(ragged_graph()).select(torch.zeros(0, dtype=torch.int64), None),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_agrees_with_the_reference(name, dtype):
    torch.manual_seed(0)
    mask = CASES[name]()
    query, key = mask._walks.query.pattern, mask._walks.key.pattern
    structure = (query.row_ptr, query.columns, key.column_ptr, key.rows)
    pattern = reference.pair_pattern(*structure, key.shape[0])
    for a, b in zip(numba.pair_pattern(*structure, key.shape[0]), pattern, strict=True):
        assert torch.equal(a, b)
    values = [torch.randn(len(x.columns), dtype=dtype) for x in (query, key)]
    arguments = (*pattern, *structure, key.shape[0], *values)
    torch.testing.assert_close(numba.pair_values(*arguments), reference.pair_values(*arguments))
    grad = torch.randn(len(pattern[1]), dtype=dtype)
    found = numba.pair_values_backward(grad, *arguments)
    for a, b in zip(found, reference.pair_values_backward(grad, *arguments), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
