"""Masks made of masks: sums, Kronecker products and prefixes."""

from __future__ import annotations

import torch

import topomask as tm
from helpers.graphs import directed_graph, ragged_batch, ragged_graph, sequence_batch, signed_graph
from helpers.mask_cases.enrolment import enrol
from helpers.mask_cases.grids import toeplitz_mask
from helpers.mask_cases.positions import position_mask
from helpers.mask_cases.walks import random_f, walk_mask


@enrol
def prefix_diffusion() -> tm.Mask:
    return tm.PrefixMask(tm.DiffusionMask(ragged_graph(), "laplacian", time=[0.3, 2.0], num_heads=2).double())


@enrol
def prefix_position() -> tm.Mask:
    return tm.PrefixMask(position_mask(sequence_batch(), num_heads=2))


@enrol
def prefix_neighbor() -> tm.Mask:
    return tm.PrefixMask(tm.NeighborMask(ragged_batch())).double()


@enrol
def prefix_walk() -> tm.Mask:
    return tm.PrefixMask(walk_mask(ragged_graph(), num_heads=2), num_prefix=2)


@enrol
def prefix_batch() -> tm.Mask:
    return tm.PrefixMask(walk_mask(ragged_batch(), num_heads=2, symmetric=False), num_prefix=2)


@enrol
def prefix_shared_heads() -> tm.Mask:
    return tm.PrefixMask(walk_mask(ragged_batch(), num_heads=2, shared_heads=True, symmetric=False))


@enrol
def prefix_power_series() -> tm.Mask:
    return tm.PrefixMask(tm.PowerSeriesMask(ragged_graph(), random_f(1, 2)))


@enrol
def prefix_toeplitz() -> tm.Mask:
    return tm.PrefixMask(toeplitz_mask((3, 3), num_heads=2), num_prefix=2)


@enrol
def sum_learnt() -> tm.Mask:
    weights = torch.nn.Parameter(torch.tensor([[1.0, -0.5], [0.3, 2.0]], dtype=torch.float64))
    parts = [walk_mask(ragged_graph(), num_heads=2), walk_mask(ragged_graph(), symmetric=False, seed=5)]
    return tm.SumMask(parts, weights)


@enrol
def sum_positive() -> tm.Mask:
    f = random_f(2, 3).abs() + 0.1
    parts = [walk_mask(ragged_graph(), 2, f=f, positive=True, seed=seed) for seed in (1, 2)]
    return tm.SumMask(parts).double()


@enrol
def sum_of_unlike_masks() -> tm.Mask:
    """A mask of two heads on a graph, a dense parameter of one head, and thin factors, with weights of every kind."""
    learnt = torch.nn.Parameter(torch.tensor([-0.7, 1.5], dtype=torch.float64))
    fixed = torch.tensor([0.5, -2.0], dtype=torch.float64)
    matrix = torch.nn.Parameter(torch.randn(11, 11, dtype=torch.float64))
    thin = tm.LowRankMask(torch.randn(2, 11, 2, dtype=torch.float64))
    return learnt * tm.PowerSeriesMask(ragged_graph(), random_f(2, 3)) + fixed * tm.DenseMask(matrix) - thin


@enrol
def sum_heads_of_weights() -> tm.Mask:
    """One head each, two heads by the weights alone."""
    weights = torch.nn.Parameter(torch.tensor([0.5, -1.0], dtype=torch.float64))
    return weights * walk_mask(ragged_graph(), symmetric=False)


@enrol
def sum_nested() -> tm.Mask:
    inner = tm.SumMask([walk_mask(ragged_graph()), walk_mask(ragged_graph(), seed=9)]).double()
    outer = torch.nn.Parameter(torch.tensor([2.0, -1.0], dtype=torch.float64))
    return tm.SumMask([inner, -inner, walk_mask(ragged_graph(), symmetric=False)], [outer, 0.25, 1.0])


@enrol
def sum_batch() -> tm.Mask:
    return walk_mask(ragged_batch(), num_heads=2) - 0.5 * walk_mask(ragged_batch(), symmetric=False, seed=3)


@enrol
def sum_of_shared_heads() -> tm.Mask:
    """All parts have one pattern for all heads, and so has the sum."""
    parts = [walk_mask(ragged_graph(), num_heads=2, shared_heads=True, seed=seed) for seed in (1, 2)]
    return parts[0] - 0.5 * parts[1] + tm.NeighborMask(ragged_graph()).double()


@enrol
def sum_of_shared_and_own_heads() -> tm.Mask:
    own = walk_mask(ragged_graph(), num_heads=2, symmetric=False)
    return own - 0.5 * walk_mask(ragged_graph(), num_heads=2, shared_heads=True, seed=3)


@enrol
def sum_behind_prefix() -> tm.Mask:
    return tm.PrefixMask(walk_mask(ragged_graph()) + walk_mask(ragged_graph(), symmetric=False), num_prefix=2)


@enrol
def kronecker_walks() -> tm.Mask:
    first = walk_mask(tm.path_graph(3), num_heads=2, symmetric=False)
    return tm.KroneckerMask(first, walk_mask(signed_graph(), num_heads=2, symmetric=False))


@enrol
def kronecker_of_shared_heads() -> tm.Mask:
    first = walk_mask(tm.path_graph(3), num_heads=2, shared_heads=True)
    return tm.KroneckerMask(first, walk_mask(signed_graph(), num_heads=2, shared_heads=True, symmetric=False))


@enrol
def kronecker_of_shared_and_own_heads() -> tm.Mask:
    first = walk_mask(tm.path_graph(3), num_heads=2, shared_heads=True)
    return tm.KroneckerMask(first, walk_mask(signed_graph(), num_heads=2, symmetric=False))


@enrol
def kronecker_positive() -> tm.Mask:
    f = random_f(2, 3).abs() + 0.1
    first = walk_mask(tm.path_graph(2), 1, f=f[0], positive=True)
    return tm.KroneckerMask(first, walk_mask(ragged_graph(), 2, f=f, positive=True))


@enrol
def kronecker_series() -> tm.Mask:
    first = tm.PowerSeriesMask(tm.cycle_graph(3), random_f(2, 2))
    return tm.KroneckerMask(first, tm.PowerSeriesMask(directed_graph(), random_f(1, 2, seed=1)))


@enrol
def kronecker_rectangular() -> tm.Mask:
    first = tm.DenseMask(torch.nn.Parameter(torch.randn(2, 2, 5, dtype=torch.float64)))
    return tm.KroneckerMask(first, tm.LowRankMask(*torch.randn(2, 3, 2, dtype=torch.float64)))


@enrol
def kronecker_tall() -> tm.Mask:
    first = tm.LowRankMask(torch.randn(4, 2, dtype=torch.float64))
    second = tm.DenseMask(torch.nn.Parameter(torch.randn(3, 5, 2, dtype=torch.float64)))
    return tm.KroneckerMask(first, second)


@enrol
def kronecker_of_three() -> tm.Mask:
    line = walk_mask(tm.path_graph(2), num_heads=2, symmetric=False)
    plane = tm.KroneckerMask(walk_mask(tm.cycle_graph(3), symmetric=False), walk_mask(tm.path_graph(2)))
    return tm.KroneckerMask(line, plane)


@enrol
def kronecker_batch() -> tm.Mask:
    """Films of one, two and three frames."""
    frames = tm.Graph.batch([tm.path_graph(size) for size in (1, 2, 3)])
    return tm.KroneckerMask(walk_mask(frames, num_heads=2), walk_mask(tm.grid_graph(2, 2), symmetric=False))


@enrol
def kronecker_of_small_and_sparse() -> tm.Mask:
    frames = tm.PowerSeriesMask(tm.path_graph(3), random_f(2, 2))
    return tm.KroneckerMask(frames, walk_mask(ragged_graph(), symmetric=False))


@enrol
def kronecker_of_sparse_and_small() -> tm.Mask:
    matrix = torch.nn.Parameter(torch.randn(2, 3, 4, dtype=torch.float64))
    return tm.KroneckerMask(walk_mask(directed_graph(), num_heads=2, symmetric=False), tm.DenseMask(matrix))


@enrol
def kronecker_single_node() -> tm.Mask:
    return tm.KroneckerMask(walk_mask(tm.path_graph(1)), walk_mask(tm.path_graph(1)))


@enrol
def sum_of_kronecker() -> tm.Mask:
    space, time = walk_mask(tm.grid_graph(2, 2), symmetric=False), walk_mask(tm.path_graph(3), symmetric=False)
    whole = walk_mask(tm.grid_graph(3, 2, 2), num_heads=2, symmetric=False)
    return tm.KroneckerMask(time, space) - 0.5 * whole
