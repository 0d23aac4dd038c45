"""Graphs that many tokens live on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from topomask.graph.graph import Graph
from topomask.graph.input import Array, check_integer, check_node_count, max_nodes


def path_graph(num_nodes: int) -> Graph:
    """A path 0 - 1 - ... - (N - 1): the graph of a sequence."""
    return grid_graph(num_nodes)


def cycle_graph(num_nodes: int) -> Graph:
    """A cycle of at least three nodes."""
    check_integer("num_nodes", num_nodes, 3)
    check_node_count("num_nodes", num_nodes, "Make it smaller")
    nodes = np.arange(num_nodes)
    return Graph.from_edges(np.stack([nodes, (nodes + 1) % num_nodes]), num_nodes)


def grid_graph(*shape: int) -> Graph:
    """A grid in any number of dimensions; nodes are numbered in row-major order, as ``x.flatten()`` does.

    Example:
        >>> import topomask as tm
        >>> tm.grid_graph(16, 16)
        Graph(num_nodes=256, num_edges=480)
    """
    if not shape:
        raise ValueError("`shape` is empty. Pass the size of every dimension, as in grid_graph(16, 16).")
    for axis, size in enumerate(shape):
        check_integer(f"shape[{axis}]", size, 1)
    check_node_count("shape", math.prod(int(size) for size in shape), "Make it smaller")
    # Without dimensions of size 1, which join nothing: NumPy has a limit to their number.
    sizes = [size for size in shape if size > 1]
    nodes = np.arange(math.prod(sizes)).reshape(sizes)
    edges = [np.zeros((2, 0), dtype=np.int64)]
    for axis in range(len(sizes)):
        moved = np.moveaxis(nodes, axis, 0)
        edges.append(np.stack([moved[:-1].ravel(), moved[1:].ravel()]))
    return Graph.from_edges(np.concatenate(edges, axis=1), nodes.size)


def hypercube_graph(dim: int) -> Graph:
    """The hypercube of 2**dim nodes; neighbours differ in one bit."""
    # More would have more nodes than a graph may have.
    check_integer("dim", dim, 0, max_nodes().bit_length() - 1)
    nodes = np.arange(2**dim)
    edges = [np.stack([nodes, nodes ^ (1 << bit)]) for bit in range(dim)]
    return Graph.from_edges(np.concatenate([np.zeros((2, 0), dtype=np.int64), *edges], axis=1), 2**dim)


def knn_graph(points: Any, k: int, directed: bool = False) -> Graph:
    """Join every point to its ``k`` nearest others, exactly.

    Args:
        points: Coordinates, [N, dim], NumPy or torch.
        k: Neighbours per point.
        directed: Keep each point's own list of exactly ``k`` out-edges. Otherwise two points are joined when either is
            among the nearest of the other.
    """
    array = points.detach().cpu().double().numpy() if isinstance(points, Tensor) else np.asarray(points)
    target = np.sort(nearest_others(array, k), axis=1)
    source = np.repeat(np.arange(len(array)), k)
    return Graph.from_edges(np.stack([source, target.ravel()]), len(array), directed=directed)


def nearest_others(points: Array, k: int, of: Array | None = None) -> Array:
    """The ``k`` nearest others of some of the points.

    Args:
        points: Coordinates, [N, dim].
        k: How many.
        of: Of which points, [R]. Default: of all.

    Returns:
        Numbers of points, the nearest first, [R, k].
    """
    if points.ndim != 2 or points.shape[1] == 0:
        raise ValueError(f"`points` must have shape [N, dim], but has shape {points.shape}. Pass one row per point.")
    not_finite = np.flatnonzero(~np.isfinite(points).all(axis=1))
    if not_finite.size:
        raise ValueError(f"`points` must be finite, but point {not_finite[0]} is {points[not_finite[0]]}. Remove it.")
    check_integer("k", k, 1)
    num_points = len(points)
    if k >= num_points:
        raise ValueError(f"`k` must be less than the number of points, {num_points}, but is {k}. Pass more points.")
    # Imported here: it takes a third of a second.
    from scipy.spatial import cKDTree

    of = np.arange(num_points) if of is None else of
    nearest = cKDTree(points).query(points[of], k=k + 1, workers=torch.get_num_threads())[1]
    # A point is its own nearest, but among duplicates it need not come first, or at all.
    own = nearest == of[:, None]
    own[~own.any(axis=1), -1] = True
    return nearest[~own].reshape(len(of), k)
