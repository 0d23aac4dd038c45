"""The compiled product of sparse features against the reference, forward and backward."""

import pytest
import torch

import topomask as tm
from helpers.graphs import ragged_batch, ragged_graph, signed_graph, star_graph
from helpers.mask_cases.enrolment import Case
from helpers.mask_cases.walks import walk_mask
from topomask.ops.pair_values import Product, join_factors, numba, pair_pattern, pair_values, reference

CASES = {
    "ragged": lambda: walk_mask(ragged_graph(), num_heads=2),
    "batch": lambda: walk_mask(ragged_batch(), num_heads=2),
    "signed": lambda: walk_mask(signed_graph()),
    "star": lambda: walk_mask(star_graph(40), max_length=2),
    "grid": lambda: walk_mask(tm.grid_graph(9, 7)),
    "one node": lambda: walk_mask(tm.path_graph(1)),
    "rectangular": lambda: Case(walk_mask(ragged_graph()), torch.tensor([4, 0, 3]), torch.tensor([1, 2, 2, 9])),
    "no queries": lambda: Case(walk_mask(ragged_graph()), torch.zeros(0, dtype=torch.int64)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_agrees_with_the_reference(name, dtype):
    torch.manual_seed(0)
    mask = CASES[name]()
    query, key = mask.on()._record.query._pattern, mask.on()._record.key._pattern
    factors = join_factors(query, key)
    pattern = reference.pair_pattern(factors)
    for a, b in zip(numba.pair_pattern(factors), pattern, strict=True):
        assert torch.equal(a, b)
    for backend in (numba, reference):
        assert torch.equal(backend.count_pairs(factors), pattern[0].diff())
    for heads in ((), (1,), (3,)):
        values = [torch.randn(*heads, len(x.columns), dtype=dtype) for x in (query, key)]
        product = Product(*pattern, factors, *values)
        torch.testing.assert_close(numba.pair_values(product), reference.pair_values(product))
        grad = torch.randn(*heads, len(pattern[1]), dtype=dtype)
        found, expected = (backend.pair_values_backward(product, grad) for backend in (numba, reference))
        for name in ("query_values", "key_values"):
            torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("name", ["ragged", "rectangular", "no queries"])
def test_heads_may_share_a_pattern(name, backend, monkeypatch):
    monkeypatch.setenv("TOPOMASK_BACKEND", backend)
    mask = CASES[name]()
    query, key = mask.on()._record.query._pattern, mask.on()._record.key._pattern
    pairs = pair_pattern(query, key)
    values = [torch.randn(3, len(x.columns), dtype=torch.float64, requires_grad=True) for x in (query, key)]
    found = pair_values(pairs, query, key, *values)
    expected = torch.stack([pair_values(pairs, query, key, *rows) for rows in zip(*values, strict=True)])
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(found)
    grads = [torch.autograd.grad((x * weights).sum(), values) for x in (found, expected)]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)
