"""Random walks merged into sparse loads, compiled: the same bits as the reference.

Rows are simulated one by one. Where weights telescope, only the number of walkers on a node matters: repelling walkers
are followed as groups, which take one draw together, others singly, and the nodes of a row are found again through a
small hash table. Where weights do not telescope (signed weights, no normalisation), every walker carries its own.
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
_ENTRIES_PER_CHUNK = 1 << 20
_ROWS_PER_TASK = 32

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


@njit(inline="always", error_model="numpy")
def _absorb(state, word):
    x = (state + _GOLDEN) ^ np.uint64(word)
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


@njit(inline="always", error_model="numpy")
def _uniform(state):
    return np.float64(state >> np.uint64(11)) * 2.0**-53


@njit(inline="always", error_model="numpy")
def _fraction(x):
    return x - np.floor(x)


@njit(error_model="numpy")
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


@njit(error_model="numpy")
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


@njit(inline="always", error_model="numpy")
def _slot(table, slots, visited, num_visited, node):
    """The slot of a node in its row, a new one if it was not visited yet; the table maps hashes to slots + 1."""
    mask = table.shape[0] - 1
    place = (np.uint64(node) * _GOLDEN >> np.uint64(32)) & np.uint64(mask)
    while True:
        slot = table[place]
        if slot == 0:
            table[place] = num_visited + 1
            slots[num_visited] = place
            visited[num_visited] = node
            return num_visited
        if visited[slot - 1] == node:
            return slot - 1
        place = (place + np.uint64(1)) & np.uint64(mask)


@njit(error_model="numpy")
def _walk_counts(graph, start, move, halt, halt_prob, num_walks, max_length, coupling, scratch):
    """Follow walkers whose weights telescope; returns how many nodes and records (slot, length, walkers) there are."""
    row_ptr, columns, cumulative, degrees, ids, unit_weights = graph
    nodes, counts, next_nodes, next_counts, table, slots, visited, stamp, place, rec_slot, rec_length, rec_total = (
        scratch
    )
    num_visited = _slot(table, slots, visited, 0, start) + 1
    stamp[0] = 0
    rec_slot[0], rec_length[0], rec_total[0] = 0, 0, np.float64(num_walks)
    records = 1
    num_groups = 1
    if coupling != 2:
        num_groups = num_walks
        for w in range(num_walks):
            nodes[w], counts[w] = start, w
    else:
        nodes[0], counts[0] = start, num_walks
    for step in range(1, max_length + 1):
        first_record, found = records, 0
        for g in range(num_groups):
            here = nodes[g]
            degree = row_ptr[here + 1] - row_ptr[here]
            if degree == 0:
                continue
            size, shared, number = 1, 0.0, np.int64(0)
            if coupling == 2:
                size = counts[g]
                shared = _uniform(_absorb(_absorb(move, ids[here]), step))
            else:
                number = counts[g]
                if coupling == 1:
                    shared = _fraction(_uniform(_absorb(_absorb(halt, number // 2), step)) + 0.5 * (number % 2))
                else:
                    shared = _uniform(_absorb(_absorb(halt, number), step))
                if shared < halt_prob:
                    continue
                shared = _uniform(_absorb(_absorb(move, number), step))
            last, slot = np.int64(-1), np.int64(-1)
            for rank in range(size):
                quantile = shared
                if coupling == 2:
                    quantile = _fraction(rank / np.float64(size) + shared)
                    if quantile < halt_prob:
                        continue
                    quantile = (quantile - halt_prob) / (1.0 - halt_prob)
                edge = _choose(row_ptr, cumulative, degrees, unit_weights, here, quantile)
                # Quantiles of a group ascend but for one turn, so walkers to one neighbour follow each other.
                if edge != last:
                    slot = _slot(table, slots, visited, num_visited, columns[edge])
                    if slot == num_visited:
                        stamp[slot] = 0
                        num_visited += 1
                    last = edge
                    if stamp[slot] != step:
                        stamp[slot], place[slot] = step, records
                        rec_slot[records], rec_length[records], rec_total[records] = slot, step, 0.0
                        records += 1
                rec_total[place[slot]] += 1.0
                if coupling != 2:
                    next_nodes[found], next_counts[found] = columns[edge], number
                    found += 1
        if coupling == 2:
            for r in range(first_record, records):
                nodes[r - first_record], counts[r - first_record] = visited[rec_slot[r]], np.int64(rec_total[r])
            num_groups = records - first_record
        else:
            for w in range(found):
                nodes[w], counts[w] = next_nodes[w], next_counts[w]
            num_groups = found
        if num_groups == 0:
            break
    return num_visited, records


@njit(error_model="numpy")
def _write_row(num_visited, records, scratch, order, ends, columns, entry_counts, lengths, loads):
    """Write records sorted by node; they come in order of their length."""
    visited, rec_slot, rec_length, rec_total = scratch[6], scratch[9], scratch[10], scratch[11]
    for slot in range(num_visited):
        columns[slot], order[slot], ends[slot] = visited[slot], slot, 0
    for r in range(records):
        ends[rec_slot[r]] += 1
    _sort(columns, order, num_visited)
    start = 0
    for k in range(num_visited):
        slot = order[k]
        entry_counts[k] = ends[slot]
        ends[slot], start = start, start + ends[slot]
    for r in range(records):
        slot = rec_slot[r]
        lengths[ends[slot]], loads[ends[slot]] = rec_length[r], rec_total[r]
        ends[slot] += 1


@njit(error_model="numpy")
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
                    number = numbers[w]
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
            source = order[w]
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


@njit(error_model="numpy")
def _write_keys(records, max_length, keys, totals, columns, entry_counts, lengths, loads):
    """Write records (node * (L + 1) + length, total) sorted; returns the number of nodes."""
    _sort(keys, totals, records)
    pairs, last = 0, np.int64(-1)
    for r in range(records):
        column = keys[r] // (max_length + 1)
        if column != last:
            columns[pairs], entry_counts[pairs], last = column, 0, column
            pairs += 1
        entry_counts[pairs - 1] += 1
        lengths[r], loads[r] = keys[r] % (max_length + 1), totals[r]
    return pairs


@njit(error_model="numpy")
def _weigh_row(pairs, start, roots, normalization, divisors, columns, entry_counts, lengths, loads):
    """Turn totals into loads."""
    entry = 0
    for k in range(pairs):
        ratio = roots[start] / roots[columns[k]]
        for _ in range(entry_counts[k]):
            length = lengths[entry]
            if length == 0:
                loads[entry] = 1.0
            else:
                if normalization == 1:
                    loads[entry] *= ratio
                loads[entry] /= divisors[length]
            entry += 1


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
    pair_counts,
    counts,
    out_columns,
    out_entry_counts,
    out_lengths,
    out_loads,
):
    """Sample all rows into buffers of ``capacity`` each, and count what they hold."""
    num_rows = starts.shape[0]
    telescopes = normalization != 2 and signs.shape[0] == 0
    graph = (row_ptr, columns, cumulative, degrees, ids, unit_weights)
    num_tasks = (num_rows + _ROWS_PER_TASK - 1) // _ROWS_PER_TASK
    table_size = 4
    while table_size < 2 * capacity:
        table_size *= 2
    for task in prange(num_tasks):
        nodes, next_nodes = np.empty(num_walks, np.int64), np.empty(num_walks, np.int64)
        numbers, next_numbers = np.empty(num_walks, np.int64), np.empty(num_walks, np.int64)
        weights, next_weights = np.empty(num_walks), np.empty(num_walks)
        order, ends = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
        keys, totals = np.empty(capacity, np.int64), np.empty(capacity)
        table, slots = np.zeros(table_size, np.int32), np.empty(capacity, np.int64)
        visited, stamp = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
        place, rec_slot = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
        rec_length = np.empty(capacity, np.int64)
        scratch = (
            nodes,
            numbers,
            next_nodes,
            next_numbers,
            table,
            slots,
            visited,
            stamp,
            place,
            rec_slot,
            rec_length,
            totals,
        )
        for row in range(task * _ROWS_PER_TASK, min(num_rows, (task + 1) * _ROWS_PER_TASK)):
            start = starts[row]
            move_state, halt_state = _absorb(move, ids[start]), _absorb(halt, ids[start])
            first, last = row * capacity, (row + 1) * capacity
            row_columns, row_entry_counts = out_columns[first:last], out_entry_counts[first:last]
            row_lengths, row_loads = out_lengths[first:last], out_loads[first:last]
            if telescopes:
                pairs, records = _walk_counts(
                    graph, start, move_state, halt_state, halt_prob, num_walks, max_length, coupling, scratch
                )
                _write_row(pairs, records, scratch, order, ends, row_columns, row_entry_counts, row_lengths, row_loads)
                for k in range(pairs):
                    table[slots[k]] = 0
            else:
                records = _walk_singly(
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
                    (nodes, numbers, weights, next_nodes, next_numbers, next_weights),
                    order,
                    keys,
                    totals,
                )
                pairs = _write_keys(
                    records, max_length, keys, totals, row_columns, row_entry_counts, row_lengths, row_loads
                )
            _weigh_row(
                pairs, start, roots, normalization, divisors, row_columns, row_entry_counts, row_lengths, row_loads
            )
            pair_counts[row], counts[row] = pairs, records


def _compress(
    capacity,
    row_ptr,
    entry_start,
    in_columns,
    in_entry_counts,
    in_lengths,
    in_loads,
    columns,
    entry_counts,
    lengths,
    loads,
):
    """Copy rows from their buffers to where they belong."""
    for row in prange(row_ptr.shape[0] - 1):
        first = row * capacity
        for k in range(row_ptr[row + 1] - row_ptr[row]):
            columns[row_ptr[row] + k] = in_columns[first + k]
            entry_counts[row_ptr[row] + k] = in_entry_counts[first + k]
        for k in range(entry_start[row + 1] - entry_start[row]):
            lengths[entry_start[row] + k] = in_lengths[first + k]
            loads[entry_start[row] + k] = in_loads[first + k]


_sample_kernel, _compress_kernel = Kernel(_sample_rows), Kernel(_compress)


def _starts(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)])


def sample_walks(graph: GraphTensors, start_nodes: Tensor, settings: WalkSettings, head: int) -> Loads:
    """Sample walks from ``start_nodes`` [R] on ``graph`` for one head."""
    capacity = settings.num_walks * settings.max_length + 1
    rows = max(_ROWS_PER_TASK, _ENTRIES_PER_CHUNK // capacity)
    prepared = _Prepared(graph, settings, head)
    size = min(rows, len(start_nodes)) * capacity
    # Every chunk uses the same buffers, whose pages are then in memory already.
    buffers = (np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int16), np.empty(size))
    chunks = [prepared.sample(chunk.numpy(), capacity, buffers) for chunk in start_nodes.split(rows) or (start_nodes,)]
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

    def sample(self, starts: np.ndarray, capacity: int, buffers: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """Walks of some rows as (counts, columns, entry_counts, lengths, loads)."""
        counts, pair_counts = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.int64)
        _sample_kernel(*self.before, starts, *self.after, capacity, pair_counts, counts, *buffers)
        row_ptr, entry_start = _starts(pair_counts), _starts(counts)
        columns, entry_counts = np.empty(row_ptr[-1], np.int64), np.empty(row_ptr[-1], np.int64)
        lengths, loads = np.empty(entry_start[-1], np.int16), np.empty(entry_start[-1])
        _compress_kernel(capacity, row_ptr, entry_start, *buffers, columns, entry_counts, lengths, loads)
        return pair_counts, columns, entry_counts, lengths, loads
