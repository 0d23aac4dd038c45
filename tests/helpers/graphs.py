"""Graphs that every law is tested on."""

from __future__ import annotations

import numpy as np

import topomask as tm


def ragged_graph() -> tm.Graph:
    """Two components, an isolated node, a self-loop, unequal weights."""
    rng = np.random.default_rng(3)
    edges = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 3), (5, 6), (6, 7), (7, 8), (8, 5), (6, 8), (9, 10), (3, 9)]
    return tm.Graph.from_edges(edges, num_nodes=11, weights=rng.uniform(0.5, 2.0, len(edges)))


def directed_graph() -> tm.Graph:
    """Unequal weights, a sink and a node without edges."""
    rng = np.random.default_rng(4)
    edges = [(0, 1), (1, 0), (1, 2), (2, 3), (0, 3), (4, 0), (4, 4), (6, 1)]
    return tm.Graph.from_edges(edges, num_nodes=7, weights=rng.uniform(0.5, 2.0, len(edges)), directed=True)


def signed_graph() -> tm.Graph:
    edges = [(0, 1), (1, 2), (2, 3), (3, 0), (1, 3), (4, 5)]
    return tm.Graph.from_edges(edges, num_nodes=7, weights=[1.0, -0.5, 2.0, -1.0, 0.7, -1.0], signed=True)


def star_graph(num_leaves: int) -> tm.Graph:
    leaves = np.arange(1, num_leaves + 1)
    return tm.Graph.from_edges(np.stack([np.zeros_like(leaves), leaves]), num_leaves + 1)


def ragged_batch() -> tm.Graph:
    return tm.Graph.batch([tm.path_graph(1), tm.cycle_graph(5), ragged_graph(), tm.grid_graph(2, 3)])


def sequence_batch() -> tm.Graph:
    """One token, and sequences shorter and longer than a tile."""
    return tm.Graph.batch([tm.path_graph(n) for n in (1, 6, 70, 2)])


def small_forest(weights: object = None) -> tm.Graph:
    """A tree of eight nodes, a path of three and a node of its own, numbered at random."""
    edges = np.array([(0, 1), (0, 2), (2, 3), (2, 4), (4, 5), (2, 6), (6, 7), (8, 9), (9, 10)])
    return tm.Graph.from_edges(np.random.default_rng(5).permutation(12)[edges], 12, weights=weights)
