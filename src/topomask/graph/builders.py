"""Builders of common graphs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from topomask.graph.graph import Graph
from topomask.graph.input import Array, check_integer, check_node_count, first_true, max_nodes


def path_graph(num_nodes: int) -> Graph:
    """Build a path 0 - 1 - ... - (N - 1), the graph of a sequence."""
    return grid_graph(num_nodes)


def cycle_graph(num_nodes: int) -> Graph:
    """Build a cycle of at least three nodes."""
    check_integer("num_nodes", num_nodes, 3)
    check_node_count("num_nodes", num_nodes, "Make it smaller")
    nodes = np.arange(num_nodes)
    return Graph.from_edges(np.stack([nodes, (nodes + 1) % num_nodes]), num_nodes)


def grid_graph(*shape: int) -> Graph:
    """Build a grid in any number of dimensions; nodes are numbered in row-major order, as in ``x.flatten()``.

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
    # Dimensions of size 1 add no edges, and NumPy limits the number of dimensions.
    sizes = [size for size in shape if size > 1]
    nodes = np.arange(math.prod(sizes)).reshape(sizes)
    edges = [np.zeros((2, 0), dtype=np.int64)]
    for axis in range(len(sizes)):
        moved = np.moveaxis(nodes, axis, 0)
        edges.append(np.stack([moved[:-1].ravel(), moved[1:].ravel()]))
    return Graph.from_edges(np.concatenate(edges, axis=1), nodes.size)


def hypercube_graph(dim: int) -> Graph:
    """Build the hypercube of 2**dim nodes; neighbours differ in one bit."""
    check_integer("dim", dim, 0, max_nodes().bit_length() - 1)
    nodes = np.arange(2**dim)
    edges = [np.stack([nodes, nodes ^ (1 << bit)]) for bit in range(dim)]
    return Graph.from_edges(np.concatenate([np.zeros((2, 0), dtype=np.int64), *edges], axis=1), 2**dim)


def knn_graph(points: Any, k: int, directed: bool = False) -> Graph:
    """Connect every point to its ``k`` exact nearest neighbours.

    Args:
        points: Coordinates, [N, dim], NumPy or torch.
        k: Neighbours per point.
        directed: Give every point exactly ``k`` out-edges. Otherwise two points are connected if either is among the
            nearest neighbours of the other.
    """
    array = points.detach().cpu().double().numpy() if isinstance(points, Tensor) else np.asarray(points)
    target = np.sort(nearest_others(array, k), axis=1)
    source = np.repeat(np.arange(len(array)), k)
    return Graph.from_edges(np.stack([source, target.ravel()]), len(array), directed=directed)


def nearest_others(points: Array, k: int, of: Array | None = None) -> Array:
    """Return the ``k`` nearest other points, nearest first, of the points ``of`` [R] (default: all), [R, k]."""
    if points.ndim != 2 or points.shape[1] == 0:
        raise ValueError(f"`points` must have shape [N, dim], but has shape {points.shape}. Pass one row per point.")
    if (row := first_true(~np.isfinite(points).all(axis=1))) is not None:
        raise ValueError(f"`points` must be finite, but point {row} is {points[row]}. Remove it.")
    check_integer("k", k, 1)
    if k >= len(points):
        raise ValueError(
            f"`k` must be less than the number of points, {len(points)}, but is {k}. Pass more points or a smaller k."
        )
    # Imported here: it takes a third of a second.
    from scipy.spatial import cKDTree

    of = np.arange(len(points)) if of is None else of
    nearest = cKDTree(points).query(points[of], k=k + 1, workers=torch.get_num_threads())[1]
    # A point is its own nearest neighbour, but among duplicates it may not come first, or at all.
    own = nearest == of[:, None]
    own[~own.any(axis=1), -1] = True
    return nearest[~own].reshape(len(of), k)
