"""Random walks merged into sparse loads, compiled: the same bits as the reference.

Walkers of a node are simulated row by row. Repelling walkers whose weights telescope are followed as groups (node, count):
a group takes one draw, and only the counts of its neighbours matter. All others are followed one by one.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from topomask.ops.backend import Kernel
from topomask.ops.sample_walks import random
from topomask.ops.sample_walks.reference import HALT, MOVE, GraphTensors, Loads, WalkSettings

_COUPLINGS = {"iid": 0, "antithetic": 1, "repelling": 2}
_NORMALIZATIONS = {"row": 0, "sym": 1, "none": 2}
# Entries that a block of rows may leave at most; bounds the memory that does not end up in the result.
_ENTRIES_PER_CHUNK = 1 << 23
_ROWS_PER_TASK = 32

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


@njit(inline="always")
def _absorb(state, word):
    x = (state + _GOLDEN) ^ np.uint64(word)
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


@njit(inline="always")
def _uniform(state):
    return np.float64(state >> np.uint64(11)) * 2.0**-53


@njit(inline="always")
def _fraction(x):
    return x - np.floor(x)


@njit
def _sort(keys, values, count):
    """Sort keys ascending, values along with them. Shell's sort: short runs, no memory."""
    gap = 1
    while 3 * gap + 1 < count:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            key, value = keys[i], values[i]
            j = i
            while j >= gap and keys[j - gap] > key:
                keys[j], values[j] = keys[j - gap], values[j - gap]
                j -= gap
            keys[j], values[j] = key, value
        gap //= 3


@njit
def _choose(row_ptr, cumulative, degrees, unit_weights, here, quantile):
    """Position of the edge whose share of the node's total weight holds the quantile."""
    start = row_ptr[here]
    most = row_ptr[here + 1] - start - 1
    target = max(quantile, 0.0) * degrees[here]
    if unit_weights:
        return start + min(np.int64(target), most)
    low, high = np.int64(0), most
    while low < high:
        middle = (low + high) // 2
        if cumulative[start + middle] > target:
            high = middle
        else:
            low = middle + 1
    return start + low


@njit
def _walk_groups(
    row_ptr, columns, cumulative, degrees, ids, unit_weights, start, state, halt_prob, max_length, scratch, keys, totals
):
    """Follow repelling walkers as groups; returns the number of records (node * (L + 1) + length, walkers)."""
    nodes, counts, next_nodes, next_counts = scratch
    num_groups = 1
    nodes[0] = start
    keys[0], totals[0] = start * (max_length + 1), counts[0]
    records = 1
    for step in range(1, max_length + 1):
        found = 0
        for g in range(num_groups):
            here, size = nodes[g], counts[g]
            degree = row_ptr[here + 1] - row_ptr[here]
            if degree == 0:
                continue
            shared = _uniform(_absorb(_absorb(state, ids[here]), step))
            last = np.int64(-1)
            for rank in range(np.int64(size)):
                quantile = _fraction(rank / size + shared)
                if quantile < halt_prob:
                    continue
                quantile = (quantile - halt_prob) / (1.0 - halt_prob)
                edge = _choose(row_ptr, cumulative, degrees, unit_weights, here, quantile)
                # Quantiles ascend but for one turn, so walkers to one neighbour follow each other.
                if edge == last:
                    next_counts[found - 1] += 1.0
                else:
                    next_nodes[found], next_counts[found] = columns[edge], 1.0
                    found += 1
                    last = edge
        _sort(next_nodes, next_counts, found)
        num_groups = 0
        for g in range(found):
            if num_groups > 0 and nodes[num_groups - 1] == next_nodes[g]:
                counts[num_groups - 1] += next_counts[g]
            else:
                nodes[num_groups], counts[num_groups] = next_nodes[g], next_counts[g]
                num_groups += 1
        for g in range(num_groups):
            keys[records], totals[records] = nodes[g] * (max_length + 1) + step, counts[g]
            records += 1
        if num_groups == 0:
            break
    return records


@njit
def _walk_singly(
    row_ptr,
    columns,
    cumulative,
    degrees,
    ids,
    unit_weights,
    signs,
    start,
    move,
    halt,
    halt_prob,
    num_walks,
    max_length,
    coupling,
    normalization,
    scratch,
    order,
    keys,
    totals,
):
    """Follow every walker; returns the number of records (node * (L + 1) + length, sum of weights)."""
    nodes, numbers, weights, sorting, spare_numbers, spare_weights = scratch
    alive = num_walks
    for w in range(num_walks):
        nodes[w], numbers[w], weights[w] = start, w, 1.0
    keys[0], totals[0] = start * (max_length + 1), np.float64(num_walks)
    records = 1
    for step in range(1, max_length + 1):
        first, moved = 0, 0
        while first < alive:
            here = nodes[first]
            size = 1
            while first + size < alive and nodes[first + size] == here:
                size += 1
            degree = row_ptr[here + 1] - row_ptr[here]
            shared = 0.0
            if coupling == 2 and degree > 0:
                shared = _uniform(_absorb(_absorb(move, ids[here]), step))
            for rank in range(size):
                w = first + rank
                if degree == 0:
                    continue
                if coupling == 2:
                    quantile = _fraction(rank / np.float64(size) + shared)
                    if quantile < halt_prob:
                        continue
                    quantile = (quantile - halt_prob) / (1.0 - halt_prob)
                else:
                    number = np.int64(numbers[w])
                    quantile = _uniform(_absorb(_absorb(move, number), step))
                    if coupling == 1:
                        halting = _uniform(_absorb(_absorb(halt, number // 2), step)) + 0.5 * (number % 2)
                        halting = _fraction(halting)
                    else:
                        halting = _uniform(_absorb(_absorb(halt, number), step))
                    if halting < halt_prob:
                        continue
                edge = _choose(row_ptr, cumulative, degrees, unit_weights, here, quantile)
                weight = weights[w]
                if signs.shape[0] > 0:
                    weight = weight * signs[edge]
                if normalization == 2:
                    weight = weight * degrees[here]
                # A stable sort by node: the place among the survivors breaks ties.
                sorting[moved], order[moved] = columns[edge] * num_walks + moved, moved
                spare_numbers[moved], spare_weights[moved] = numbers[w], weight
                moved += 1
            first += size
        _sort(sorting, order, moved)
        for w in range(moved):
            source = np.int64(order[w])
            node = sorting[w] // num_walks
            nodes[w], numbers[w], weights[w] = node, spare_numbers[source], spare_weights[source]
            key = node * (max_length + 1) + step
            if w > 0 and keys[records - 1] == key:
                totals[records - 1] += weights[w]
            else:
                keys[records], totals[records] = key, weights[w]
                records += 1
        alive = moved
        if alive == 0:
            break
    return records


def _sample_rows(
    row_ptr,
    columns,
    cumulative,
    degrees,
    roots,
    ids,
    unit_weights,
    signs,
    starts,
    move,
    halt,
    halt_prob,
    num_walks,
    max_length,
    coupling,
    normalization,
    divisors,
    capacity,
    counts,
    keys,
    loads,
):
    """Sample all rows: keys [R, capacity] ascending, their loads, and how many there are, counts [R]."""
    num_rows = starts.shape[0]
    in_groups = coupling == 2 and normalization != 2 and signs.shape[0] == 0
    num_tasks = (num_rows + _ROWS_PER_TASK - 1) // _ROWS_PER_TASK
    for task in prange(num_tasks):
        nodes, numbers = np.empty(num_walks, np.int64), np.empty(num_walks)
        weights, sorting = np.empty(num_walks), np.empty(num_walks, np.int64)
        spare_numbers, spare_weights = np.empty(num_walks), np.empty(num_walks)
        order = np.empty(num_walks)
        for row in range(task * _ROWS_PER_TASK, min(num_rows, (task + 1) * _ROWS_PER_TASK)):
            start = starts[row]
            move_state, halt_state = _absorb(move, ids[start]), _absorb(halt, ids[start])
            row_keys, row_loads = (
                keys[row * capacity : (row + 1) * capacity],
                loads[row * capacity : (row + 1) * capacity],
            )
            if in_groups:
                weights[0] = np.float64(num_walks)
                count = _walk_groups(
                    row_ptr,
                    columns,
                    cumulative,
                    degrees,
                    ids,
                    unit_weights,
                    start,
                    move_state,
                    halt_prob,
                    max_length,
                    (nodes, weights, sorting, spare_weights),
                    row_keys,
                    row_loads,
                )
            else:
                count = _walk_singly(
                    row_ptr,
                    columns,
                    cumulative,
                    degrees,
                    ids,
                    unit_weights,
                    signs,
                    start,
                    move_state,
                    halt_state,
                    halt_prob,
                    num_walks,
                    max_length,
                    coupling,
                    normalization,
                    (nodes, numbers, weights, sorting, spare_numbers, spare_weights),
                    order,
                    row_keys,
                    row_loads,
                )
            _sort(row_keys, row_loads, count)
            for r in range(count):
                length = row_keys[r] % (max_length + 1)
                if length == 0:
                    row_loads[r] = 1.0
                    continue
                if normalization == 1:
                    row_loads[r] *= roots[start] / roots[row_keys[r] // (max_length + 1)]
                row_loads[r] /= divisors[length]
            counts[row] = count


def _count_pairs(capacity, num_lengths, counts, keys, pair_counts):
    """Different columns in every row."""
    for row in prange(counts.shape[0]):
        pairs, last = 0, np.int64(-1)
        for r in range(row * capacity, row * capacity + counts[row]):
            column = keys[r] // num_lengths
            if column != last:
                pairs += 1
                last = column
        pair_counts[row] = pairs


def _compress(
    capacity, num_lengths, counts, keys, loads, row_ptr, entry_start, columns, entry_counts, lengths, out_loads
):
    """Copy rows from their buffers to where they belong."""
    for row in prange(counts.shape[0]):
        pair, entry, last = row_ptr[row] - 1, entry_start[row], np.int64(-1)
        for r in range(row * capacity, row * capacity + counts[row]):
            column = keys[r] // num_lengths
            if column != last:
                pair += 1
                columns[pair], entry_counts[pair] = column, 0
                last = column
            entry_counts[pair] += 1
            lengths[entry], out_loads[entry] = keys[r] % num_lengths, loads[r]
            entry += 1


_sample_kernel, _count_kernel, _compress_kernel = Kernel(_sample_rows), Kernel(_count_pairs), Kernel(_compress)


def _starts(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)])


def sample_walks(graph: GraphTensors, start_nodes: Tensor, settings: WalkSettings, head: int) -> Loads:
    """Sample walks from ``start_nodes`` [R] on ``graph`` for one head."""
    capacity = settings.num_walks * settings.max_length + 1
    rows = max(_ROWS_PER_TASK, _ENTRIES_PER_CHUNK // capacity)
    prepared = _Prepared(graph, settings, head)
    chunks = [prepared.sample(chunk.numpy(), capacity) for chunk in start_nodes.split(rows) or (start_nodes,)]
    return Loads(*(torch.from_numpy(np.concatenate(parts)) for parts in zip(*chunks, strict=True)))


class _Prepared:
    """The arguments that all chunks share."""

    def __init__(self, graph: GraphTensors, settings: WalkSettings, head: int) -> None:
        arrays = (graph.row_ptr, graph.columns, graph.cumulative, graph.degrees, graph.degrees.sqrt(), graph.ids)
        states = [
            np.uint64(int(random.key(settings.seed, head, settings.ensemble, purpose)) & ((1 << 64) - 1))
            for purpose in (MOVE, HALT)
        ]
        divisors = [settings.num_walks * (1.0 - settings.halt_prob) ** k for k in range(settings.max_length + 1)]
        signs = np.zeros(0) if graph.signs is None else graph.signs.numpy()
        self.num_lengths = settings.max_length + 1
        self.before = (*(array.numpy() for array in arrays), graph.unit_weights, signs)
        self.after = (
            *states,
            settings.halt_prob,
            settings.num_walks,
            settings.max_length,
            _COUPLINGS[settings.coupling],
            _NORMALIZATIONS[settings.normalization],
            np.array(divisors),
        )

    def sample(self, starts: np.ndarray, capacity: int) -> tuple[np.ndarray, ...]:
        """Walks of some rows as (counts, columns, entry_counts, lengths, loads)."""
        counts, pair_counts = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.int64)
        keys, loads = np.empty(len(starts) * capacity, np.int64), np.empty(len(starts) * capacity)
        _sample_kernel(*self.before, starts, *self.after, capacity, counts, keys, loads)
        _count_kernel(capacity, self.num_lengths, counts, keys, pair_counts)
        row_ptr, entry_start = _starts(pair_counts), _starts(counts)
        columns, entry_counts = np.empty(row_ptr[-1], np.int64), np.empty(row_ptr[-1], np.int64)
        lengths, out_loads = np.empty(entry_start[-1], np.int16), np.empty(entry_start[-1])
        _compress_kernel(
            capacity,
            self.num_lengths,
            counts,
            keys,
            loads,
            row_ptr,
            entry_start,
            columns,
            entry_counts,
            lengths,
            out_loads,
        )
        return pair_counts, columns, entry_counts, lengths, out_loads
