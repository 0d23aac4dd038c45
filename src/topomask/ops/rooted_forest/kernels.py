"""Passes over a forest, compiled if Numba is installed, plain Python otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from topomask.ops.backend import Kernel, compiled

Array = npt.NDArray[Any]


def run(kernel: Kernel, *args: Any) -> Any:
    """Call a kernel; without Numba, call its Python function."""
    return kernel(*args) if compiled() else kernel.function(*args)


def _root(indptr: Array, indices: Array, nodes: Array, above: Array, entries: Array) -> int:
    """Put nodes in an order in which every subtree is contiguous and begins with its root.

    Writes the nodes in that order to ``nodes`` [N], the parent of every place to ``above`` [N] (-1 for roots), and the
    two entries of the edge between them, seen from above and from below, to ``entries`` [2, N] (0 for roots). Returns
    0, or the length of a cycle if there is one, whose nodes are then at the beginning of ``nodes``.
    """
    size = indptr.shape[0] - 1
    # For every node: the place above it (-1 for roots, -2 if it has not been seen), and the entry that leads to it.
    place_above, entry = np.full(size, -2, dtype=np.int64), np.zeros(size, dtype=np.int64)
    stack = np.empty(size, dtype=np.int64)
    count = 0
    for root in range(size):
        if place_above[root] != -2:
            continue
        place_above[root], stack[0], top = -1, root, 1
        while top > 0:
            top -= 1
            node, place = stack[top], count
            up = place_above[node]
            nodes[place], above[place], entries[0, place], entries[1, place] = node, up, entry[node], 0
            count += 1
            for e in range(indptr[node], indptr[node + 1]):
                other = indices[e]
                if up >= 0 and other == nodes[up]:
                    entries[1, place] = e
                elif place_above[other] == -2:
                    place_above[other], entry[other], stack[top] = place, e, other
                    top += 1
                else:
                    # A node seen before is below this node or below one of its ancestors, unless it is a self-loop.
                    last, length = (place if other == node else place_above[other]), 0
                    walk = np.empty(size, dtype=np.int64)
                    while place != last:
                        walk[length], place, length = nodes[place], above[place], length + 1
                    walk[length] = nodes[last]
                    if other != node:
                        length += 1
                        walk[length] = other
                    nodes[: length + 1] = walk[: length + 1]
                    return length + 1
    return 0


def _diameters(above: Array, lengths: Array, heights: Array) -> float:
    """Return the largest distance within a tree; writes that to the farthest node below to ``heights`` [N]."""
    diameter = 0.0
    heights[:] = 0
    for place in range(above.shape[0] - 1, -1, -1):
        up = above[place]
        if up >= 0:
            height = heights[place] + lengths[place]
            diameter = max(diameter, heights[up] + height)
            heights[up] = max(heights[up], height)
    return diameter


# Kinds of places: without children, and the last child of another.
LEAF, LAST = 1, 2


def _describe(above: Array, depths: Array, trees: Array, kinds: Array) -> None:
    """Write the number of edges to the root, the number of the tree and the kind of every place."""
    size, tree = above.shape[0], -1
    last = np.full(size, -1, dtype=np.int64)
    for place in range(size):
        up = above[place]
        if up < 0:
            tree += 1
            depths[place] = 0
        else:
            depths[place] = depths[up] + 1
            last[up] = place
        trees[place] = tree
    for place in range(size):
        kinds[place] = LEAF if last[place] < 0 else 0
    for place in range(size):
        if last[place] >= 0:
            kinds[last[place]] |= LAST


root_kernel = Kernel(_root, allocates=True)
diameters_kernel = Kernel(_diameters)
describe_kernel = Kernel(_describe, allocates=True)
