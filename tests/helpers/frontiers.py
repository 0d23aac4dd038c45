"""Graphs and settings that frontiers are tested on."""

from __future__ import annotations

from collections.abc import Callable

import networkx as nx
import numpy as np

import topomask as tm
from helpers.graphs import directed_graph, ragged_batch, ragged_graph, signed_graph, star_graph
from topomask.ops.expand_frontiers import FrontierSettings


def hubs_graph(num_nodes: int = 120) -> tm.Graph:
    return tm.Graph.from_networkx(nx.barabasi_albert_graph(num_nodes, 3, seed=0))


def random_graph(seed: int, num_nodes: int | None = None, weighted: bool | None = None) -> tm.Graph:
    """Directed or not, weighted or not, signed or not, with hubs, sinks, self-loops and isolated nodes."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 40)) if num_nodes is None else num_nodes
    # Few nodes are at the end of many edges.
    edges = np.floor(count * rng.random((2, int(rng.integers(0, 5) * count))) ** rng.uniform(1, 3)).astype(np.int64)
    directed, signed = (bool(flag) for flag in rng.random(2) < 0.5)
    if weighted is None:
        weighted = bool(rng.random() < 0.6)
    weights = rng.choice([-1.0, 1.0], edges.shape[1]) if signed else np.ones(edges.shape[1])
    if weighted:
        weights = weights * rng.uniform(0.1, 3.0, edges.shape[1])
    return tm.Graph.from_edges(edges, count, weights, directed=directed, signed=signed, duplicates="first")


GRAPHS: dict[str, tuple[Callable[[], tm.Graph], tuple[str, ...]]] = {
    "ragged": (ragged_graph, ("sym", "row", "none")),
    "directed": (directed_graph, ("row", "none")),
    "signed": (signed_graph, ("sym", "row", "none")),
    "batch": (ragged_batch, ("sym", "none")),
    "star": (lambda: star_graph(63), ("sym", "row")),
    "grid": (lambda: tm.grid_graph(9, 11), ("sym",)),
    "points": (lambda: tm.knn_graph(np.random.default_rng(0).random((100, 3)), 4, directed=False), ("sym", "row")),
    "lists": (lambda: tm.knn_graph(np.random.default_rng(0).random((100, 3)), 3, directed=True), ("row",)),
    "hubs": (hubs_graph, ("sym", "row")),
    "weighted, signed, directed": (lambda: random_graph(3, 60, True), ("row", "none")),
    "no edges": (lambda: tm.Graph.from_edges([], 3), ("sym",)),
    "one node": (lambda: tm.path_graph(1), ("sym",)),
    "one node with a loop": (lambda: tm.Graph.from_edges([(0, 0)], weights=[-2.0], signed=True), ("sym", "none")),
}


def settings_of(
    width: int, max_length: int, prune: str = "largest", normalization: str = "sym", **options
) -> FrontierSettings:
    """What the op takes, by default with as many columns as a frontier has entries."""
    default = {"max_entries": width, "tolerance": None} if prune == "largest" else {}
    default |= {"length_weights": tuple(0.8**length for length in range(max_length + 1))}
    options = {"max_entries": None, "tolerance": None} | default | options
    return FrontierSettings(width, max_length, prune, euclidean=normalization == "sym", **options)
