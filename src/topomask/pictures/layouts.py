"""Positions in the plane for the nodes of a graph without coordinates."""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components, dijkstra

from topomask.graph import Graph
from topomask.graph.input import Array

# Components of up to this many nodes use the distances of all pairs; larger ones those to a few pivots and along edges.
_ALL_PAIRS = 500
_PIVOTS = 40
_ROUNDS = 150


def layout(graph: Graph, seed: int = 0) -> Array:
    """Positions, [N, 2], whose distances approximate those in the graph, component by component.

    Small components minimise the stress of all pairs, larger ones that of edges and of distances to a few dozen pivots.
    Components are placed side by side.

    References:
        Gansner, Koren and North (2005), Graph drawing by stress majorization.
        Ortmann, Klimenta and Brandes (2017), A sparse stress model.
    """
    rng = np.random.default_rng(seed)
    links = graph.to_scipy().astype(bool).astype(float)
    links = sp.csr_array(links.maximum(links.T))
    component = connected_components(links, directed=False)[1]
    sizes = np.bincount(component)
    alone = np.flatnonzero(sizes[component] == 1)
    places = np.zeros((graph.num_nodes, 2))
    boxes = []
    for number in np.argsort(-sizes, kind="stable")[: int((sizes > 1).sum())]:
        nodes = np.flatnonzero(component == number)
        inner = _component(sp.csr_array(links[nodes][:, nodes]), rng)
        places[nodes] = inner - inner.min(axis=0)
        boxes.append((nodes, inner.max(axis=0) - inner.min(axis=0)))
    if len(alone):
        # Isolated nodes form a block.
        width = max(1, math.ceil(math.sqrt(len(alone))))
        places[alone] = np.stack(np.divmod(np.arange(len(alone)), width), axis=1)[:, ::-1]
        boxes.append((alone, np.ptp(places[alone], axis=0)))
    return _pack(places, boxes)


def _component(links: sp.csr_array, rng: np.random.Generator) -> Array:
    """Positions of a connected graph, with edges of about length 1 and the longest axis horizontal."""
    size = links.shape[0]
    if size == 2:
        return np.array([[0.0, 0.0], [1.0, 0.0]])
    pivots = np.arange(size)
    if size > _ALL_PAIRS:
        # Nodes far from each other: each is the farthest from the previous ones.
        chosen, nearest = [int(rng.integers(size))], np.full(size, np.inf)
        while len(chosen) < _PIVOTS:
            nearest = np.minimum(nearest, dijkstra(links, indices=chosen[-1], unweighted=True))
            chosen.append(int(nearest.argmax()))
        pivots = np.array(chosen)
    distances = dijkstra(links, indices=pivots, unweighted=True)  # [pivots, N]
    # Start from classical scaling of squared distances to the pivots.
    squares = distances.T**2
    double_centred = squares - squares.mean(axis=0) - squares.mean(axis=1, keepdims=True) + squares.mean()
    u, s, _ = np.linalg.svd(double_centred, full_matrices=False)
    # Nodes with the same distances to all pivots must not start at the same position.
    places = u[:, :2] * np.sqrt(s[:2]) + 0.05 * rng.standard_normal((size, 2))
    # Pivots move nodes, but not all nodes move pivots: that would tear pivots away from their neighbours.
    first, second, length = np.tile(np.arange(size), len(pivots)), np.repeat(pivots, size), distances.ravel()
    if size > _ALL_PAIRS:
        edges = sp.coo_array(links)
        # Edges stand for all near pairs, and a pivot for one far pair.
        first, second = np.concatenate([first, edges.row]), np.concatenate([second, edges.col])
        length = np.concatenate([length, np.ones(edges.nnz)])
    keep = first != second
    return to_plane(_majorize(places, first[keep], second[keep], length[keep]))


def to_plane(points: Array) -> Array:
    """Project points [N, 2 or 3] to the plane of their two longest axes, with the longest one horizontal."""
    centred = points - points.mean(axis=0)
    return centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T


def _majorize(places: Array, first: Array, second: Array, length: Array) -> Array:
    """Repeatedly move the first node of each pair to where its pairs want it."""
    weight, size = length**-2.0, len(places)
    total = np.bincount(first, weight, size)
    for _ in range(_ROUNDS):
        apart = places[first] - places[second]
        found = np.maximum(np.sqrt((apart**2).sum(axis=1)), 1e-9)
        pull = (weight * (length / found - 1.0))[:, None] * apart
        move = np.stack([np.bincount(first, pull[:, axis], size) for axis in (0, 1)], axis=1)
        places = places + move / total[:, None]
    return places


def _pack(places: Array, boxes: list[tuple[Array, Array]]) -> Array:
    """Put components on shelves, the largest first, so that the whole is about square."""
    gap = 1.5
    area = sum(float((size[0] + gap) * (size[1] + gap)) for _, size in boxes)
    widest = max([math.sqrt(1.6 * area), *(float(size[0]) + gap for _, size in boxes)])
    x = y = height = 0.0
    places = places.copy()
    for nodes, size in boxes:
        if x > 0 and x + size[0] > widest:
            x, y, height = 0.0, y - height - gap, 0.0
        # Components are aligned at the top of their shelf.
        places[nodes] += np.array([x, y - size[1]])
        x, height = x + float(size[0]) + gap, max(height, float(size[1]))
    return places
