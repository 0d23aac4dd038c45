"""Frontiers of one row after the other, compiled.

The frontier of a row is short, and so are the lists of nodes that it reaches: they are found by a hash table that fits
in a cache. Nothing in the table is ever erased: what was put in for an earlier list counts as not there. Nodes are
numbered in order of their ids, and are unsigned as in the kernels of walks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from topomask.ops.backend import EXACT
from topomask.ops.expand_frontiers.numba.order import choose, round_magnitude, sort_all, sort_by_node
from topomask.ops.sample_walks.numba.walkers import ONE, ZERO, absorb, uniform

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Matrix(NamedTuple):
    """The matrix W."""

    row_ptr: np.ndarray  # [N + 1], uint64
    columns: np.ndarray  # [nnz], unsigned
    values: np.ndarray  # [nnz]
    rest: np.ndarray  # [N], norm of what was cut off at hubs; empty for "resample"
    growth: np.ndarray  # [N]
    ids: np.ndarray  # [N]


class Hubs(NamedTuple):
    """Nodes with more neighbours than a frontier has entries, and how their rows of W are thinned."""

    number: np.ndarray  # [N], one more than the hub that a node is; 0 for others
    kept_ptr: np.ndarray  # [hubs + 1]
    kept: np.ndarray  # edges that stay
    threshold: np.ndarray  # [hubs], absolute value of the others
    left: np.ndarray  # [hubs], how many of them there are
    last: np.ndarray  # [hubs], the last edge that does not stay
    sum_ptr: np.ndarray  # [hubs], where the running sums of a hub begin
    sums: np.ndarray  # running sums over the edges that do not stay


class Settings(NamedTuple):
    """How frontiers are pruned."""

    width: int
    max_length: int
    max_entries: int
    euclidean: bool
    length_weights: np.ndarray  # [L + 1]


class States(NamedTuple):
    """What draws and ties begin with."""

    prune: np.uint64
    hub: np.uint64
    tie: np.uint64


class Table(NamedTuple):
    """A hash table of nodes."""

    slots: np.ndarray  # uint64; number of a candidate
    shift: np.uint64


class Entries(NamedTuple):
    """Entries of all frontiers of a row, those of a frontier in order of nodes."""

    node: np.ndarray  # uint64
    value: np.ndarray
    column: np.ndarray  # which candidate its column is
    next: np.ndarray  # the entry before it of the same column, or -1
    ptr: np.ndarray  # [L + 2], where the frontier of every length begins


@njit(**EXACT)
def find(node, table, base, nodes, count):
    """The number of a node among those that were found since ``base``; ``count`` if it is new, and is noted now."""
    slots = table.slots
    mask = np.uint64(len(slots)) - ONE
    place = (node * _GOLDEN) >> table.shift
    while True:
        found = slots[place]
        if found < base:
            slots[place] = base + count
            nodes[count] = node
            return count
        if nodes[found - base] == node:
            return found - base
        place = (place + ONE) & mask


@njit(forceinline=True, **EXACT)
def _add(node, term, table, base, candidates, count):
    """Add a term to the entry of a node; returns the number of entries."""
    k = find(node, table, base, candidates.node, count)
    if k == count:
        candidates.value[k] = term
        return count + ONE
    candidates.value[k] += term
    return count


@njit(**EXACT)
def spread(matrix, entries, first, end, table, base, candidates):
    """Add up what a frontier passes on to all neighbours; returns how many are reached."""
    count = ZERO
    for e in range(first, end):
        node, value = entries.node[e], entries.value[e]
        for edge in range(matrix.row_ptr[node], matrix.row_ptr[node + ONE]):
            term = value * matrix.values[edge]
            count = _add(np.uint64(matrix.columns[edge]), term, table, base, candidates, count)
    return count


@njit(forceinline=True, **EXACT)
def _threshold_count(running, threshold, draw, left):
    """How many thresholds fit into a running sum, shifted by the draw."""
    return min(np.floor(running / threshold + draw), left)


@njit(**EXACT)
def _spread_hub(matrix, hubs, hub, node, value, draw, table, base, candidates, count):
    """Add what a hub passes on to some of its neighbours; returns how many nodes are reached in all."""
    for k in range(hubs.kept_ptr[hub], hubs.kept_ptr[hub + ONE]):
        edge = hubs.kept[k]
        term = value * matrix.values[edge]
        count = _add(np.uint64(matrix.columns[edge]), term, table, base, candidates, count)
    begin = matrix.row_ptr[node]
    degree = matrix.row_ptr[node + ONE] - begin
    threshold, left, sums = hubs.threshold[hub], hubs.left[hub], hubs.sum_ptr[hub]
    picked, low = 0.0, ZERO
    while picked < left:
        # The first edge whose running sum holds one threshold more.
        high = degree
        while low < high:
            middle = (low + high) >> ONE
            if _threshold_count(hubs.sums[sums + middle], threshold, draw, left) > picked:
                high = middle
            else:
                low = middle + ONE
        edge, number = hubs.last[hub], left
        if low < degree and begin + low < edge:
            edge, number = begin + low, _threshold_count(hubs.sums[sums + low], threshold, draw, left)
        term = value * (np.sign(matrix.values[edge]) * threshold * (number - picked))
        count = _add(np.uint64(matrix.columns[edge]), term, table, base, candidates, count)
        picked = number
    return count


@njit(**EXACT)
def spread_some(matrix, hubs, state, step, entries, first, end, table, base, candidates):
    """Add up what a frontier passes on: hubs to some neighbours, others to all; returns how many are reached."""
    count = ZERO
    for e in range(first, end):
        node, value = entries.node[e], entries.value[e]
        number = hubs.number[node]
        if number > ZERO:
            draw = uniform(absorb(absorb(state, matrix.ids[node]), step))
            count = _spread_hub(matrix, hubs, number - ONE, node, value, draw, table, base, candidates, count)
            continue
        for edge in range(matrix.row_ptr[node], matrix.row_ptr[node + ONE]):
            term = value * matrix.values[edge]
            count = _add(np.uint64(matrix.columns[edge]), term, table, base, candidates, count)
    return count


@njit(**EXACT)
def drop_zeros(candidates, count):
    """Close the gaps of entries that have cancelled, and round the others; returns how many there are."""
    node, value, magnitude = candidates.node, candidates.value, candidates.magnitude
    left = 0
    for k in range(count):
        if value[k] != 0.0:
            node[left], value[left], magnitude[left] = node[k], value[k], round_magnitude(value[k])
            left += 1
    return left


@njit(forceinline=True, **EXACT)
def norm_term(x, euclidean):
    """What a number adds to a 2-norm before its root is taken, or to a 1-norm."""
    return x * x if euclidean else abs(x)


@njit(forceinline=True, **EXACT)
def norm(total, euclidean):
    """The norm of numbers from the total of their terms."""
    return np.sqrt(total) if euclidean else total


@njit(**EXACT)
def keep_largest(matrix, settings, tie, candidates, count, entries, first, end):
    """Write the next frontier after the one from ``first`` to ``end``; returns its end and the norm of what is lost."""
    euclidean, stop, lost = settings.euclidean, end, 0.0
    if count > settings.width:
        choose(candidates, count, settings.width, tie, matrix.ids)
        for k in range(count):
            if candidates.chosen[k]:
                entries.node[stop], entries.value[stop] = candidates.node[k], candidates.value[k]
                stop += 1
            else:
                lost += norm_term(candidates.value[k], euclidean)
    else:
        for k in range(count):
            entries.node[stop], entries.value[stop] = candidates.node[k], candidates.value[k]
            stop += 1
    sort_by_node(entries.node, entries.value, end, stop)
    at_hubs = 0.0
    for e in range(first, end):
        at_hubs += abs(entries.value[e]) * matrix.rest[entries.node[e]]
    return stop, norm(lost, euclidean) + at_hubs


@njit(**EXACT)
def thin(matrix, width, tie, draw, candidates, count, entries, end):
    """Write the next frontier from ``end`` on, thinned; returns its end."""
    node, value, magnitude, _, _, place, chosen = candidates
    sort_by_node(node, value, 0, count)
    for k in range(count):
        chosen[k] = count <= width
        magnitude[k] = round_magnitude(value[k])
    left, threshold, last = 0, 1.0, 0
    if count > width:
        sort_all(candidates, count, tie, matrix.ids)
        kept = _count_kept(candidates, count, width)
        for j in range(kept):
            chosen[place[j]] = True
        running = 0.0
        for k in range(count):
            if not chosen[k]:
                running += abs(value[k])
                last = k
        left = width - kept
        threshold = running / np.float64(left)
    running, before, stop = 0.0, 0.0, end
    for k in range(count):
        x = value[k]
        if not chosen[k]:
            running += abs(x)
            number = np.float64(left)
            if k < last:
                number = _threshold_count(running, threshold, draw, number)
            x = np.sign(x) * threshold * (number - before)
            before = number
        if x != 0.0:
            entries.node[stop], entries.value[stop] = node[k], x
            stop += 1
    return stop


@njit(**EXACT)
def _count_kept(candidates, count, width):
    """How many entries stay as they are: the first whose share of the rest is no more than one of those left."""
    value, place, kept = candidates.value, candidates.place, width - 1
    tail = 0.0
    for position in range(count):
        j = count - 1 - position
        size = abs(value[place[j]])
        tail += size
        if j < width and size * np.float64(width - j) <= tail:
            kept = j
    return kept
