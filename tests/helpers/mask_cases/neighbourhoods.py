"""Masks of neighbours, degrees, distances and graphs of a batch."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

import topomask as tm
from helpers.graphs import directed_graph, ragged_batch, ragged_graph, signed_graph, star_graph
from helpers.mask_cases.enrolment import enrol
from helpers.mask_cases.walks import random_f


def degree_mask(graph: tm.Graph, num_heads: int, max_degree: int) -> tm.DegreeMask:
    return tm.DegreeMask(graph, num_heads=num_heads, max_degree=max_degree, z=random_f(num_heads, max_degree).sigmoid())


@enrol
def degree() -> tm.Mask:
    return degree_mask(ragged_graph(), num_heads=2, max_degree=5)


@enrol
def degree_directed() -> tm.Mask:
    return degree_mask(directed_graph(), num_heads=1, max_degree=1)


@enrol
def degree_batch() -> tm.Mask:
    return degree_mask(ragged_batch(), num_heads=2, max_degree=3)


@enrol
def degree_single_node() -> tm.Mask:
    return degree_mask(tm.path_graph(1), num_heads=1, max_degree=0)


@enrol
def degree_hub() -> tm.Mask:
    return degree_mask(star_graph(62), num_heads=3, max_degree=8)


def shortest_path_mask(graph: tm.Graph | None, num_heads: int, max_distance: int, **options) -> tm.ShortestPathMask:
    return tm.ShortestPathMask(
        graph, num_heads=num_heads, max_distance=max_distance, initial=random_f(num_heads, max_distance), **options
    )


@enrol
def shortest_path() -> tm.Mask:
    return shortest_path_mask(ragged_graph(), num_heads=2, max_distance=3)


@enrol
def shortest_path_unreachable() -> tm.Mask:
    return shortest_path_mask(ragged_graph(), num_heads=2, max_distance=2, unreachable=-0.3)


@enrol
def shortest_path_bias() -> tm.Mask:
    return shortest_path_mask(directed_graph(), num_heads=2, max_distance=3, bias=True)


@enrol
def shortest_path_lengths() -> tm.Mask:
    initial = random_f(1, 3)
    return tm.ShortestPathMask(directed_graph(), boundaries=[0.0, 1.0, 2.5], initial=initial, unreachable=0.7)


@enrol
def shortest_path_single_node() -> tm.Mask:
    return shortest_path_mask(tm.path_graph(1), num_heads=1, max_distance=0)


@enrol
def shortest_path_batch() -> tm.Mask:
    return shortest_path_mask(ragged_batch(), num_heads=2, max_distance=3)


@enrol
def shortest_path_batch_bias() -> tm.Mask:
    return shortest_path_mask(ragged_batch(), num_heads=1, max_distance=3, bias=True, unreachable=-1.0)


@enrol
def neighbor() -> tm.Mask:
    return tm.NeighborMask(ragged_graph()).double()


@enrol
def neighbor_directed() -> tm.Mask:
    return tm.NeighborMask(directed_graph()).double()


@enrol
def neighbor_signed() -> tm.Mask:
    return tm.NeighborMask(signed_graph(), weighted=True).double()


@enrol
def neighbor_without_self_loops() -> tm.Mask:
    return tm.NeighborMask(ragged_graph(), weighted=True, self_loops=False).double()


@enrol
def neighbor_batch() -> tm.Mask:
    return tm.NeighborMask(ragged_batch()).double()


@enrol
def neighbor_dense() -> tm.Mask:
    """Enough neighbours for tiles."""
    return tm.NeighborMask(tm.Graph.from_scipy(sp.csr_array(np.ones((63, 63))))).double()


@enrol
def all_pairs() -> tm.Mask:
    return tm.AllPairsMask(ragged_graph()).double()


@enrol
def all_pairs_batch() -> tm.Mask:
    return tm.AllPairsMask(ragged_batch()).double()
