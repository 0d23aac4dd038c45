"""Random graphs of many kinds, each as a plain matrix and as the library's graph of the same edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

import topomask as tm

Array = np.ndarray
Rng = np.random.Generator


class PlainGraph(NamedTuple):
    """A graph as a dense matrix, beside the library's own."""

    adjacency: Array  # [N, N], float64
    groups: Array  # which graph of a batch every node belongs to, [N]
    directed: bool
    graph: tm.Graph

    @property
    def size(self) -> int:
        return len(self.adjacency)

    @property
    def num_graphs(self) -> int:
        return int(self.groups.max()) + 1


class MismatchError(AssertionError):
    """The library and the plain definition do not agree."""


def pick(rng: Rng, items: Any, weights: Any = None) -> Any:
    """One of the items, with probabilities in proportion to weights."""
    items = list(items)
    p = None if weights is None else np.asarray(weights, dtype=float) / np.sum(weights)
    return items[int(rng.choice(len(items), p=p))]


def _matrix(size: int, edges: Any, directed: bool = False) -> Array:
    found = np.zeros((size, size))
    for i, j in edges:
        found[i, j] = 1.0
        if not directed:
            found[j, i] = 1.0
    return found


def path(rng: Rng, size: int) -> Array:
    return _matrix(size, [(i, i + 1) for i in range(size - 1)])


def cycle(rng: Rng, size: int) -> Array:
    size = max(3, size)
    return _matrix(size, [(i, (i + 1) % size) for i in range(size)])


def grid_shape(rng: Rng, size: int) -> tuple[int, int]:
    rows = int(rng.integers(1, max(2, int(size**0.5) + 1)))
    return rows, max(1, size // rows)


def grid(rng: Rng, size: int) -> Array:
    rows, columns = grid_shape(rng, size)
    found = np.zeros((rows * columns,) * 2)
    for i in range(rows * columns):
        for j in range(rows * columns):
            distance = abs(i // columns - j // columns) + abs(i % columns - j % columns)
            found[i, j] = float(distance == 1)
    return found


def star(rng: Rng, size: int) -> Array:
    hub = int(rng.integers(size))
    return _matrix(size, [(hub, i) for i in range(size) if i != hub])


def complete(rng: Rng, size: int) -> Array:
    return np.ones((size, size)) - np.eye(size)


def tree(rng: Rng, size: int) -> Array:
    names = rng.permutation(size)
    return _matrix(size, [(names[i], names[int(rng.integers(i))]) for i in range(1, size)])


def forest(rng: Rng, size: int) -> Array:
    found = tree(rng, size)
    for i, j in np.argwhere(np.triu(found)):
        if rng.random() < 0.25:
            found[i, j] = found[j, i] = 0.0
    return found


def random(rng: Rng, size: int) -> Array:
    half = np.triu(rng.random((size, size)) < rng.uniform(0.05, 0.6), 1).astype(float)
    return half + half.T


def scale_free(rng: Rng, size: int) -> Array:
    found = np.zeros((size, size))
    for i in range(1, size):
        weights = found[:i].sum(axis=1) + 1.0
        for _ in range(min(i, 2)):
            j = int(rng.choice(i, p=weights / weights.sum()))
            found[i, j] = found[j, i] = 1.0
    return found


def bipartite(rng: Rng, size: int) -> Array:
    side = rng.random(size) < 0.5
    return random(rng, size) * (side[:, None] != side)


def two_components(rng: Rng, size: int) -> Array:
    part = np.arange(size) < size // 2
    return (random(rng, size) + path(rng, size) > 0) * (part[:, None] == part)


def isolated(rng: Rng, size: int) -> Array:
    alone = rng.random(size) < 0.4
    return random(rng, size) * ~(alone[:, None] | alone)


def no_edges(rng: Rng, size: int) -> Array:
    return np.zeros((size, size))


def hypercube(rng: Rng, size: int) -> Array:
    count = 2 ** int(np.log2(size))
    pairs = np.arange(count)[:, None] ^ np.arange(count)
    return ((pairs & (pairs - 1)) == 0).astype(float) - np.eye(count)


def weighted(rng: Rng, size: int) -> Array:
    half = np.triu(random(rng, size)) * np.exp(rng.normal(size=(size, size)))
    return half + half.T


def signed(rng: Rng, size: int) -> Array:
    half = np.triu(random(rng, size)) * rng.normal(size=(size, size))
    return half + half.T


def loops(rng: Rng, size: int) -> Array:
    return weighted(rng, size) + np.diag((rng.random(size) < 0.5) * np.exp(rng.normal(size=size)))


def signed_loops(rng: Rng, size: int) -> Array:
    return signed(rng, size) + np.diag((rng.random(size) < 0.5) * rng.normal(size=size))


def weighted_tree(rng: Rng, size: int) -> Array:
    half = np.triu(forest(rng, size)) * np.exp(rng.normal(size=(size, size)))
    return half + half.T


def whole_tree(rng: Rng, size: int) -> Array:
    half = np.triu(forest(rng, size)) * rng.integers(1, 5, size=(size, size))
    return half + half.T


def directed(rng: Rng, size: int) -> Array:
    return (rng.random((size, size)) < rng.uniform(0.1, 0.5)) * (1.0 - np.eye(size))


def sinks(rng: Rng, size: int) -> Array:
    return np.triu(directed(rng, size)) * np.exp(rng.normal(size=(size, size)))


def directed_signed(rng: Rng, size: int) -> Array:
    return (rng.random((size, size)) < 0.3) * rng.normal(size=(size, size))


def knn(rng: Rng, size: int) -> Array:
    return np.maximum(found := knn_lists(rng.normal(size=(max(3, size), 3))), found.T)


def knn_lists(points: Array, k: int = 2) -> Array:
    distances = ((points[:, None] - points) ** 2).sum(axis=-1)
    np.fill_diagonal(distances, np.inf)
    found = np.zeros_like(distances)
    np.put_along_axis(found, np.argsort(distances, axis=1)[:, :k], 1.0, axis=1)
    return found


UNDIRECTED: dict[str, Callable[[Rng, int], Array]] = {
    function.__name__: function
    for function in (
        path,
        cycle,
        grid,
        star,
        complete,
        tree,
        forest,
        random,
        scale_free,
        bipartite,
        two_components,
        isolated,
        no_edges,
        hypercube,
        weighted,
        signed,
        loops,
        signed_loops,
        weighted_tree,
        whole_tree,
        knn,
    )
}
DIRECTED: dict[str, Callable[[Rng, int], Array]] = {
    function.__name__: function for function in (directed, sinks, directed_signed)
}
FORESTS = ("path", "tree", "forest", "star", "no_edges", "weighted_tree", "whole_tree")
KINDS = (*UNDIRECTED, *DIRECTED, "knn_directed", "batch", "batch_directed", "batch_paths", "batch_trees", "no_nodes")
BATCHES = ("batch", "batch_directed", "batch_paths", "batch_trees")


def build(adjacency: Array, is_directed: bool, rng: Rng) -> tm.Graph:
    """The library's graph of a matrix, by one of the ways to build it."""
    size, negative = len(adjacency), bool((adjacency < 0).any())
    if rng.random() < 0.3:
        return tm.Graph.from_scipy(sp.csr_array(adjacency), directed=is_directed, signed=negative)
    edges = np.argwhere(adjacency if is_directed else np.triu(adjacency))
    edges = edges[rng.permutation(len(edges))]
    weights = adjacency[edges[:, 0], edges[:, 1]]
    if not is_directed:
        flip = rng.random(len(edges)) < 0.5
        edges[flip] = edges[flip, ::-1]
    plain = bool((weights == 1.0).all()) and rng.random() < 0.5
    return tm.Graph.from_edges(edges.T, size, None if plain else weights, directed=is_directed, signed=negative)


def draw_graph(kind: str, rng: Rng, size: int) -> PlainGraph:
    """A random graph of a kind with about so many nodes; a MismatchError where the library has other edges."""
    if kind == "no_nodes":
        return one(np.zeros((0, 0)), False, tm.Graph.from_edges(np.zeros((2, 0), dtype=np.int64), 0))
    if kind in BATCHES:
        return _batch(kind, rng, size)
    if kind == "knn_directed":
        points = rng.normal(size=(max(3, size), 2))
        return one(knn_lists(points), True, tm.knn_graph(points, 2, directed=True))
    if kind in DIRECTED:
        adjacency = DIRECTED[kind](rng, size)
        return one(adjacency, True, build(adjacency, True, rng))
    adjacency = UNDIRECTED[kind](rng, size).astype(float)
    builders = {"path": tm.path_graph, "cycle": tm.cycle_graph}
    if kind in builders and rng.random() < 0.5:
        return one(adjacency, False, builders[kind](len(adjacency)))
    if kind == "hypercube" and rng.random() < 0.5:
        return one(adjacency, False, tm.hypercube_graph(int(np.log2(len(adjacency)))))
    return one(adjacency, False, build(adjacency, False, rng))


def _batch(kind: str, rng: Rng, size: int) -> PlainGraph:
    kinds = {
        "batch": ("single", "path", "random", "complete", "signed", "no_edges", "loops", "star"),
        "batch_directed": ("single", *DIRECTED),
        "batch_paths": ("single", "path"),
        "batch_trees": ("single", "tree", "forest", "star"),
    }[kind]
    parts = []
    for _ in range(int(rng.integers(1, 6))):
        part = pick(rng, kinds)
        count = 1 if part == "single" else int(rng.integers(1, max(2, size // 2 + 1)))
        drawn = no_edges if part == "single" else (DIRECTED if kind == "batch_directed" else UNDIRECTED)[part]
        adjacency = drawn(rng, count).astype(float)
        parts.append(one(adjacency, kind == "batch_directed", build(adjacency, kind == "batch_directed", rng)))
    whole = np.zeros((sum(part.size for part in parts),) * 2)
    start = 0
    for part in parts:
        whole[start : start + part.size, start : start + part.size] = part.adjacency
        start += part.size
    groups = np.repeat(np.arange(len(parts)), [part.size for part in parts])
    return check(PlainGraph(whole, groups, kind == "batch_directed", tm.Graph.batch([part.graph for part in parts])))


def one(adjacency: Array, is_directed: bool, graph: tm.Graph) -> PlainGraph:
    """One graph that is no batch."""
    return check(PlainGraph(adjacency, np.zeros(len(adjacency), dtype=int), is_directed, graph))


def check(plain: PlainGraph) -> PlainGraph:
    """The graph; a MismatchError unless the library has the same edges."""
    found = plain.graph.to_scipy().toarray()
    if found.shape != plain.adjacency.shape or not np.allclose(found, plain.adjacency, rtol=1e-12, atol=0.0):
        raise MismatchError("the adjacency matrix of the graph differs")
    if not np.array_equal(plain.graph.graph_index, plain.groups):
        raise MismatchError("nodes of a batch are in other graphs")
    return plain
