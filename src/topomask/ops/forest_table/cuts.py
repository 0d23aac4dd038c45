"""Cutting trees in two, compiled if Numba is installed, plain Python otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from topomask.ops.backend import Kernel, compiled

# Decided when this file is first imported, which is when the first forest is cut.
IS_COMPILED = compiled(torch.empty(0, device="cpu"))


def _inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that compiled functions call."""
    if not IS_COMPILED:
        return function
    from numba import njit

    return njit(error_model="numpy")(function)


# Distances up to this many times the number of nodes are all scanned rather than sorted.
_DENSE = 4


def _root_trees(indptr, indices, lengths, node, parent, length, ptr):
    """Root every tree at its first node; returns the number of trees."""
    size = len(indptr) - 1
    seen = np.zeros(size, np.bool_)
    stack = np.empty((size, 3), np.int64)
    count, used = 0, 0
    for root in range(size):
        if seen[root]:
            continue
        ptr[count] = used
        first, top = used, 1
        stack[0, 0], stack[0, 1], stack[0, 2] = root, -1, 0
        seen[root] = True
        while top:
            top -= 1
            v = stack[top, 0]
            node[used], parent[used], length[used] = v, stack[top, 1], stack[top, 2]
            here = used - first
            used += 1
            for e in range(indptr[v], indptr[v + 1]):
                u = indices[e]
                if not seen[u]:
                    seen[u] = True
                    stack[top, 0], stack[top, 1], stack[top, 2] = u, here, lengths[e]
                    top += 1
        count += 1
    ptr[count] = used
    return count


@_inner
def _number_slots(s, n, first, node, side, distance, keys, marks, slot, found, num_slots):
    """Number the distinct distances of one side, in order; returns the next number."""
    count, last = 0, 0
    for i in range(n):
        if side[i] == s and node[first + i] >= 0:
            keys[count] = distance[i]
            last = max(last, distance[i])
            count += 1
    if last <= _DENSE * n:
        # Few enough distances to scan all of them.
        for k in range(count):
            marks[keys[k]] = 0
        for d in range(last + 1):
            if marks[d] == 0:
                marks[d], found[num_slots] = num_slots, d
                num_slots += 1
        for i in range(n):
            if side[i] == s and node[first + i] >= 0:
                slot[node[first + i]] = marks[distance[i]]
        for d in range(last + 1):
            marks[d] = -1
        return num_slots
    begin = num_slots
    keys[:count].sort()
    for k in range(count):
        if k == 0 or keys[k] != keys[k - 1]:
            found[num_slots] = keys[k]
            num_slots += 1
    for i in range(n):
        if side[i] == s and node[first + i] >= 0:
            slot[node[first + i]] = begin + np.searchsorted(found[begin:num_slots], distance[i])
    return num_slots


@_inner
def _copy_side(
    s, n, first, cut, above_side, node, parent, length, side, weight, children, above, offset,
    next_node, next_parent, next_length, used,
):  # fmt: skip
    """Write one side, connected by the cut, as a tree of its own; returns its number of places."""
    # The cut is part of both sides, as a joint in one. Weights count only the nodes of this side below a place:
    for i in range(n):
        inside = side[i] == s or i == cut
        weight[i] = 1 if inside and side[i] == s and node[first + i] >= 0 else 0
        children[i] = 0
    for i in range(n - 1, 0, -1):
        if (side[i] == s or i == cut) and not (i == cut and above_side != s) and weight[i] > 0:
            p = parent[first + i]
            weight[p] += weight[i]
            children[p] += 1
    kept = 0
    for i in range(n):
        if not (side[i] == s or i == cut) or weight[i] == 0:
            continue
        is_root = i == 0 or (i == cut and above_side != s)
        p = parent[first + i]
        up, extra = (-1, 0) if is_root else (above[p], offset[p] + length[first + i])
        is_node = side[i] == s and node[first + i] >= 0
        if not is_node and (children[i] == 1 or (up < 0 and children[i] < 2)):
            # A joint between two parts becomes a longer edge; one at the root with a single child is dropped.
            above[i], offset[i] = up, extra
            continue
        v = node[first + i]
        next_node[used + kept] = v if is_node else (v if v < 0 else -1 - v)
        next_parent[used + kept], next_length[used + kept] = up, extra if up >= 0 else 0
        above[i], offset[i] = kept, 0
        kept += 1
    return kept


def _cut_trees(
    node, parent, length, ptr, count, starts, places,
    next_node, next_parent, next_length, next_ptr, next_starts,
    slot, found, slot_ptr, runs,
):  # fmt: skip
    """Cut every tree in two; returns the number of sides and of trees that are left to cut.

    Every loop over a tree takes time proportional to its size.
    """
    size = ptr[count]
    weight, children = np.empty(size, np.int64), np.empty(size, np.int64)
    height, distance = np.empty(size, np.int64), np.empty(size, np.int64)
    branch, side = np.empty(size, np.int64), np.empty(size, np.int8)
    above, offset, on_path = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.bool_)
    keys, marks = np.empty(size, np.int64), np.full(_DENSE * size + 1, -1, np.int64)
    sides, left, used, num_slots = 0, 0, 0, 0
    slot_ptr[0] = 0
    next_ptr[0] = 0
    for t in range(count):
        first, n = ptr[t], ptr[t + 1] - ptr[t]
        # Weights: the number of nodes, without joints, at and below every place.
        for i in range(n):
            weight[i] = 1 if node[first + i] >= 0 else 0
        for i in range(n - 1, 0, -1):
            weight[parent[first + i]] += weight[i]
        total = weight[0]
        if total == 1:
            for i in range(n):
                if node[first + i] >= 0:
                    places[starts[t]] = node[first + i]
            continue
        # The last place in this order with at least half of the nodes below it: no branch of it has more than half.
        cut = n - 1
        while 2 * weight[cut] < total:
            cut -= 1
        for i in range(n):
            on_path[i] = False
            height[i] = 0 if i == 0 else height[parent[first + i]] + length[first + i]
        i = cut
        while i >= 0:
            on_path[i] = True
            i = parent[first + i]
        # Distances to the cut, and the branch of the cut that every place is in: 0 is the one above it.
        for i in range(n):
            p = parent[first + i]
            if on_path[i]:
                distance[i], branch[i] = height[cut] - height[i], 0
            else:
                distance[i] = distance[p] + length[first + i]
                branch[i] = i if p == cut else branch[p]
        # Side 0: one branch with at least a third of the nodes, or several branches that have as many together.
        heaviest, most = 0, total - weight[cut]
        for i in range(cut + 1, n):
            if parent[first + i] == cut and weight[i] > most:
                heaviest, most = i, weight[i]
        gathered = most
        for i in range(n):
            side[i] = 1
        if 3 * most < total:
            gathered = total - weight[cut]
            side[0] = 0
            for i in range(cut + 1, n):
                if parent[first + i] == cut and 3 * gathered < total:
                    side[i] = 0
                    gathered += weight[i]
        else:
            side[heaviest] = 0
        above_side = side[0] if cut > 0 else 1
        for i in range(n):
            if i != cut:
                side[i] = above_side if branch[i] == 0 else side[branch[i]]
        # The node at the cut goes to the smaller side.
        side[cut] = 0 if 2 * gathered < total else 1
        runs[sides // 2, 0], runs[sides // 2, 1] = starts[t], starts[t] + total
        for s in range(2):
            num_slots = _number_slots(s, n, first, node, side, distance, keys, marks, slot, found, num_slots)
            sides += 1
            slot_ptr[sides] = num_slots
        start = starts[t]
        for s in range(2):
            size_of_side = 0
            for i in range(n):
                if side[i] == s and node[first + i] >= 0:
                    size_of_side += 1
            kept = _copy_side(
                s, n, first, cut, above_side, node, parent, length, side, weight, children, above, offset,
                next_node, next_parent, next_length, used,
            )  # fmt: skip
            next_starts[left] = start
            start += size_of_side
            used += kept
            left += 1
            next_ptr[left] = used
    return sides, left


root_kernel, cut_kernel = Kernel(_root_trees, allocates=True), Kernel(_cut_trees, allocates=True)
