"""The columns of a row: the union of its frontiers, cut to those that matter most, and written in order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from topomask.ops.backend import EXACT
from topomask.ops.expand_frontiers.numba.frontiers import find, norm, norm_term
from topomask.ops.expand_frontiers.numba.order import choose, round_magnitude, sort_all, sort_by_node
from topomask.ops.sample_walks.numba.walkers import ONE, ZERO

# Scores beyond this count as this, and the column of the start node as more.
_MAX_SCORE, _FIRST = 1e308, np.int64((1 << 63) - 1)


class Columns(NamedTuple):
    """Columns of a row."""

    latest: np.ndarray  # their last entry
    size: np.ndarray  # number of their entries
    node: np.ndarray  # those that are kept, uint64
    number: np.ndarray  # which candidates those are
    lost: np.ndarray  # [L + 1], squares or sums of what is dropped


@njit(**EXACT)
def find_columns(settings, entries, table, base, candidates, columns):
    """Number the columns of a row, the start node first, and add up their scores; returns how many there are."""
    count = ZERO
    for length in range(settings.max_length + 1):
        weight = settings.length_weights[length]
        for e in range(entries.ptr[length], entries.ptr[length + 1]):
            k = find(entries.node[e], table, base, candidates.node, count)
            if k == count:
                candidates.value[k], columns.size[k], columns.latest[k] = 0.0, 0, -1
                count += ONE
            candidates.value[k] += weight * abs(entries.value[e])
            columns.size[k] += 1
            entries.next[e], columns.latest[k], entries.column[e] = columns.latest[k], e, k
    return count


@njit(**EXACT)
def _row_error(settings, bounds, lost):
    """The bound on the error of a row whose modulation is the length weights."""
    error = 0.0
    for length in range(settings.max_length + 1):
        error += settings.length_weights[length] * (bounds[length] + norm(lost[length], settings.euclidean))
    return error


@njit(**EXACT)
def _drop_column(settings, entries, columns, k):
    """Add the entries of a column to what is dropped."""
    e = columns.latest[k]
    length = settings.max_length
    while e >= 0:
        while entries.ptr[length] > e:
            length -= 1
        columns.lost[length] += norm_term(entries.value[e], settings.euclidean)
        e = entries.next[e]


@njit(**EXACT)
def _choose_within(settings, tolerance, tie, ids, candidates, count, entries, columns, bounds):
    """Choose as few columns as the tolerance allows; returns whether it is missed."""
    sort_all(candidates, count, tie, ids)
    for k in range(count):
        candidates.chosen[k] = True
    for length in range(settings.max_length + 1):
        columns.lost[length] = 0.0
    left = count
    while left > settings.max_entries:
        left -= 1
        _drop_column(settings, entries, columns, candidates.place[left])
        candidates.chosen[candidates.place[left]] = False
    missed = _row_error(settings, bounds, columns.lost) > tolerance
    while left > 1:
        left -= 1
        _drop_column(settings, entries, columns, candidates.place[left])
        if _row_error(settings, bounds, columns.lost) > tolerance:
            break
        candidates.chosen[candidates.place[left]] = False
    return missed


@njit(**EXACT)
def cut_columns(settings, tolerance, tie, ids, candidates, count, entries, columns, bounds):
    """Choose the columns of a row, and add what is lost to the bounds; returns whether the tolerance is missed.

    Without a tolerance, which is None, Numba does not compile what meets one.
    """
    missed = False
    for k in range(count):
        candidates.magnitude[k] = round_magnitude(min(candidates.value[k], _MAX_SCORE))
    candidates.magnitude[0] = _FIRST
    if tolerance is not None:
        missed = _choose_within(settings, tolerance, tie, ids, candidates, count, entries, columns, bounds)
    elif count > settings.max_entries:
        choose(candidates, count, settings.max_entries, tie, ids)
    else:
        for k in range(count):
            candidates.chosen[k] = True
        return False
    for length in range(settings.max_length + 1):
        lost = 0.0
        for e in range(entries.ptr[length], entries.ptr[length + 1]):
            if not candidates.chosen[entries.column[e]]:
                lost += norm_term(entries.value[e], settings.euclidean)
        bounds[length] += norm(lost, settings.euclidean)
    return missed


@njit(**EXACT)
def write_row(settings, entries, candidates, count, columns, pair, entry, offset, out):
    """Write the chosen columns of a row in order; returns where the next row begins."""
    chosen, place, kept = candidates.chosen, candidates.place, 0
    for k in range(count):
        if chosen[k]:
            columns.node[kept], columns.number[kept] = candidates.node[k], k
            kept += 1
    sort_by_node(columns.node, columns.number, 0, kept)
    end = entry
    for c in range(kept):
        out.columns[pair + c], out.entry_ptr[pair + c] = columns.node[c], end - offset
        place[columns.number[c]] = end
        end += columns.size[columns.number[c]]
    for length in range(settings.max_length + 1):
        for e in range(entries.ptr[length], entries.ptr[length + 1]):
            k = entries.column[e]
            if chosen[k]:
                out.lengths[place[k]], out.loads[place[k]] = length, entries.value[e]
                place[k] += 1
    return pair + kept, end
