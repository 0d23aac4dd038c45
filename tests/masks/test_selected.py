"""What is particular to some rows and columns of a mask; the laws cover the rest."""

import gc
import weakref

import pytest
import torch

import topomask as tm
from helpers.graphs import ragged_graph
from helpers.mask_cases.walks import walk_mask
from helpers.noisy import NoisyMask


def steep_masks():
    """Masks with noisy products, whose entries fall far below the noise."""
    falling = torch.exp(-torch.arange(-63, 64.0).abs())
    steep = tm.ToeplitzMask(64, f=falling, positive=True)
    grid = tm.ToeplitzMask((8, 8), f=torch.exp(-8.0 * torch.rand(15, 15)), positive=True)
    return {
        "toeplitz": steep,
        "grid": grid,
        "sum": 2.0 * steep + grid,
        "kronecker": tm.KroneckerMask(tm.ToeplitzMask(8, f=falling[56:71] ** 6, positive=True), tm.ToeplitzMask(8)),
    }


@pytest.mark.parametrize("name", ["toeplitz", "grid", "sum", "kronecker"])
def test_entries_below_the_noise_of_products_are_kept(name):
    torch.manual_seed(0)
    mask = steep_masks()[name]
    queries, keys = torch.tensor([0, 5, 5]), torch.arange(30, 64)
    dense = mask.to_dense()[:, queries][:, :, keys]
    torch.testing.assert_close(mask.on().select(queries, keys).to_dense(), dense, rtol=1e-5, atol=0)
    torch.testing.assert_close(mask.on().select(None, keys).to_dense(), mask.to_dense()[:, :, keys], rtol=1e-5, atol=0)
    # Keys that are not selected are as keys in the padding.
    q, k, v = torch.randn(3, 1, 1, 64, 4)
    padding = torch.ones(1, 64, dtype=torch.bool)
    padding[:, keys] = False
    for attend in (tm.masked_softmax_attention, tm.masked_attention):
        whole = attend(q, k, v, mask, key_padding_mask=padding, strategy="dense")[:, :, queries]
        nodes = {"query_nodes": queries, "key_nodes": keys}
        part = attend(q[:, :, queries], k[:, :, keys], v[:, :, keys], mask, **nodes, strategy="dense")
        torch.testing.assert_close(part, whole, rtol=1e-4, atol=1e-6)
        assert (part != 0).any()


@pytest.mark.parametrize("shape", [(3, 5), (5, 3)])
def test_noisy_masks_that_are_not_square(shape):
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    mask = tm.KroneckerMask(tm.DenseMask(matrix), tm.DiffusionMask(ragged_graph()))
    queries, keys = torch.tensor([0, 7, 3]), torch.tensor([1, 2, 20, 20])
    dense = mask.to_dense()[:, queries][:, :, keys]
    torch.testing.assert_close(mask.on().select(queries, keys).to_dense(), dense, rtol=1e-4, atol=1e-6)
    noisy = NoisyMask(matrix).on().select(torch.tensor([0]), torch.tensor([1, 2]))
    assert noisy.to_dense().shape == (1, 1, 2)


def test_a_selection_of_a_selection():
    mask = walk_mask(ragged_graph(), num_heads=2)
    rows, columns = torch.tensor([3, 0, 4, 3]), torch.tensor([1, 2, 4])
    inner = mask.on().select(rows, columns)
    again = inner.submatrix(torch.tensor([2, 0]), None)
    assert torch.equal(again, inner.to_dense()[:, [2, 0]])


def test_nothing_of_a_selection_outlives_it():
    """A mask whose parameters do not change caches its own operator, but no selection of it."""
    for mask in (walk_mask(ragged_graph()), tm.NeighborMask(ragged_graph()), tm.PrefixMask(walk_mask(ragged_graph()))):
        with torch.no_grad():
            operator = mask.on()
            few = operator.select(torch.tensor([3, 0]), torch.tensor([1, 2, 2]))
            few.to_dense(), few.magnitude().to_dense(), few.entries()
            assert mask.on() is operator
            gone = weakref.ref(few)
            del few
            gc.collect()
            assert gone() is None


def test_copies_of_nodes_count_as_often_as_they_are_selected():
    operator = tm.NeighborMask(ragged_graph()).on()
    few = operator.select(torch.tensor([3, 3, 3]), torch.tensor([2, 2, 9]))
    assert len(few.entries().pattern.columns) == 9 <= few.cost().max_pairs
    assert (operator.cost().refresh, few.cost().refresh > 0) == (0, True)
