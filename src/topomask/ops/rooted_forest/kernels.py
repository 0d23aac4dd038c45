"""Passes over a forest, compiled where Numba is installed, and plain Python where it is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from topomask.ops.backend import Kernel, compiled

Array = npt.NDArray[Any]


def run(kernel: Kernel, *args: Any) -> Any:
    """Call a kernel; without Numba, the function that it is made of."""
    return kernel(*args) if compiled() else kernel.function(*args)


def _root(indptr: Array, indices: Array, nodes: Array, above: Array, entries: Array) -> int:
    """Put nodes in an order in which every subtree is a run that begins with its root.

    ``nodes`` [N] gets them in that order, ``above`` [N] the place above every place (-1 for roots), and ``entries``
    [2, N] the two entries of the edge between them, seen from above and from below (0 for roots). Where there is a
    cycle, the length of one is returned and its nodes stand at the beginning of ``nodes``; otherwise 0.
    """
    size = indptr.shape[0] - 1
    # Of every node: the place above it (-1 for roots, -2 if it has not been seen), and the entry that leads to it.
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
                    # What has been seen hangs below this node, or below one that is above it; a loop below neither.
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
    """The largest distance between two nodes of a tree; ``heights`` [N] gets that to the farthest node below."""
    diameter = 0.0
    heights[:] = 0
    for place in range(above.shape[0] - 1, -1, -1):
        up = above[place]
        if up >= 0:
            height = heights[place] + lengths[place]
            diameter = max(diameter, heights[up] + height)
            heights[up] = max(heights[up], height)
    return diameter


# What a place may be: one with nothing below it, the last of those below another.
LEAF, LAST = 1, 2


def _describe(above: Array, depths: Array, trees: Array, kinds: Array) -> None:
    """The number of edges to the root, the number of the tree and the kind of every place."""
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
