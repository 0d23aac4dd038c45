"""The order in which entries are pruned, and what is first in it: rounded magnitudes, then hashes, then nodes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from topomask.ops.backend import EXACT
from topomask.ops.sample_walks.numba.walkers import absorb

_HALF, _DROPPED = np.int64(1 << 28), np.int64(29)


class Candidates(NamedTuple):
    """Entries of which some are kept, and scratch for choosing them."""

    node: np.ndarray  # uint64
    value: np.ndarray
    magnitude: np.ndarray  # rounded, int64
    tie: np.ndarray  # hashes, int64
    scratch: np.ndarray  # int64
    place: np.ndarray  # int64
    chosen: np.ndarray  # bool


@intrinsic
def _bits(context, x):
    """The bits of a float64, as an int64."""

    def generate(_, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), generate


@njit(forceinline=True, **EXACT)
def round_magnitude(x):
    """The absolute value, rounded to 24 bits, as an int64 that compares as it does."""
    return (_bits(abs(x)) + _HALF) >> _DROPPED


@njit(forceinline=True, **EXACT)
def _tie(state, node_id):
    return np.int64(absorb(absorb(state, node_id), 0) >> np.uint64(1))


@njit(**EXACT)
def _kth_largest(values, count, k):
    """The k-th largest of some numbers, which are moved."""
    low, high, target = 0, count - 1, k - 1
    while low < high:
        pivot, i, j = values[(low + high) >> 1], low, high
        while i <= j:
            while values[i] > pivot:
                i += 1
            while values[j] < pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if target <= j:
            high = j
        elif target >= i:
            low = i
        else:
            break
    return values[target]


@njit(**EXACT)
def choose(candidates, count, limit, state, ids):
    """Choose the first ``limit`` candidates, of which there are more."""
    node, _, magnitude, tie, scratch, _, chosen = candidates
    for k in range(count):
        scratch[k] = magnitude[k]
    last = _kth_largest(scratch, count, limit)
    num_above, num_equal = 0, 0
    for k in range(count):
        num_above += magnitude[k] > last
        num_equal += magnitude[k] == last
    needed = limit - num_above
    if needed == num_equal:
        for k in range(count):
            chosen[k] = magnitude[k] >= last
        return
    # Only entries of this magnitude need hashes.
    equal = 0
    for k in range(count):
        if magnitude[k] == last:
            tie[k] = _tie(state, ids[node[k]])
            scratch[equal] = tie[k]
            equal += 1
    last_tie = _kth_largest(scratch, num_equal, num_equal - needed + 1)
    for k in range(count):
        is_before = magnitude[k] == last and tie[k] < last_tie
        chosen[k] = magnitude[k] > last or is_before
        needed -= is_before
    # Almost always a single one, but equal hashes are possible.
    while needed > 0:
        first = -1
        for k in range(count):
            if magnitude[k] == last and tie[k] == last_tie and not chosen[k] and (first < 0 or node[k] < node[first]):
                first = k
        chosen[first] = True
        needed -= 1


@njit(**EXACT)
def sort_all(candidates, count, state, ids):
    """Put into ``place`` where candidates are, in order."""
    node, _, magnitude, tie, _, place, _ = candidates
    for k in range(count):
        tie[k], place[k] = _tie(state, ids[node[k]]), k
    gap = 1
    while 3 * gap + 1 < count:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            moving, j = place[i], i
            while j >= gap and _precedes(moving, place[j - gap], magnitude, tie, node):
                place[j] = place[j - gap]
                j -= gap
            place[j] = moving
        gap //= 3


@njit(forceinline=True, **EXACT)
def _precedes(a, b, magnitude, tie, node):
    if magnitude[a] != magnitude[b]:
        return magnitude[a] > magnitude[b]
    if tie[a] != tie[b]:
        return tie[a] < tie[b]
    return node[a] < node[b]


@njit(**EXACT)
def sort_by_node(node, value, first, end):
    """Sort nodes from ``first`` to ``end``, and a value of each."""
    gap = 1
    while 3 * gap + 1 < end - first:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(first + gap, end):
            moving, with_it, j = node[i], value[i], i
            while j >= first + gap and node[j - gap] > moving:
                node[j], value[j] = node[j - gap], value[j - gap]
                j -= gap
            node[j], value[j] = moving, with_it
        gap //= 3
