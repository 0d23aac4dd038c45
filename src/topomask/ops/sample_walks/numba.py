"""Random walks, compiled: the same bits as the reference.

Every thread samples a block of rows one by one and writes them one after the other; then all blocks are copied to where
they belong. A record sums up the walkers of one row that are on one node after one number of steps. The latest
record of every node is found by direct address, and every record knows which one of its node it is. Visited nodes are
marked in a tree of bit sets, from which they are read in order. So records are neither searched nor sorted, and where
weights telescope almost no branch depends on a draw. Where they do not (signed weights, no normalisation), every walker
carries its own, and walkers are sorted by node as in the reference, so that sums have the same order.

Nodes and positions are unsigned: Numba would look at every signed index whether it counts from the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic
from torch import Tensor

from topomask.ops import segments
from topomask.ops.backend import Kernel
from topomask.ops.sample_walks import random
from topomask.ops.sample_walks.reference import (
    HALT,
    MOVE,
    GraphTensors,
    Loads,
    WalkSettings,
    length_dtype,
)

_IID, _ANTITHETIC, _REPELLING = 0, 1, 2
_COUPLINGS = {"iid": _IID, "antithetic": _ANTITHETIC, "repelling": _REPELLING}
# Entries that a chunk of rows may leave at most; bounds the memory that does not end up in the result.
_ENTRIES_PER_CHUNK = 1 << 23
# Nodes that all threads together keep records of at most; bounds memory on large graphs with many threads.
_TABLE_SIZE = 1 << 28
_ROWS_PER_BLOCK = 32
# Walkers that are sorted by comparing all with all.
_FEW = 64

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_ZERO, _ONE, _SIX, _WORD = np.uint64(0), np.uint64(1), np.uint64(6), np.uint64(63)
# Where walkers are that have ended.
_NOWHERE = np.uint64((1 << 64) - 1)

# What is called for every step allocates nothing, and must not count references to arrays: it would take most of the
# time.
_INNER: dict[str, Any] = {"error_model": "numpy", "_nrt": False}


@njit(forceinline=True, **_INNER)
def _absorb(state, word):
    """The hash state after one more word."""
    x = (state + _GOLDEN) ^ np.uint64(word)
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


@njit(forceinline=True, **_INNER)
def _uniform(state):
    """A float64 in [0, 1) with 53 random bits."""
    return np.float64(np.int64(state >> np.uint64(11))) * 2.0**-53


@njit(forceinline=True, **_INNER)
def _fraction(x):
    """What is left of x in [0, 2) without its integer part."""
    return x - 1.0 if x >= 1.0 else x


@njit(forceinline=True, **_INNER)
def _choose(cumulative, degrees, unit_weights, here, begin, degree, quantile):
    """Position of the edge whose share of the node's total weight holds the quantile."""
    if unit_weights:
        # The total weight is the degree, and a float64 below 2**53 keeps all its digits as an int64.
        place = np.uint64(np.int64(quantile * np.float64(np.int64(degree))))
        return begin + min(place, degree - _ONE)
    target = quantile * degrees[here]
    low, high = np.uint64(0), degree - _ONE
    while low < high:
        middle = (low + high) >> _ONE
        if cumulative[begin + middle] > target:
            high = middle
        else:
            low = middle + _ONE
    return begin + low


@njit(forceinline=True, **_INNER)
def _halts(halt, number, step, halt_prob, coupling):
    """Whether a walker that goes its own way halts before a step."""
    if coupling == _ANTITHETIC:
        return _fraction(_uniform(_absorb(_absorb(halt, number // 2), step)) + 0.5 * (number % 2)) < halt_prob
    return _uniform(_absorb(_absorb(halt, number), step)) < halt_prob


@njit(**_INNER)
def _draw_singly(halt, step, halt_prob, coupling, alive, number, state, quantile):
    """Quantiles of walkers that go their own ways, negative if they halt; ``state`` has absorbed their numbers."""
    for w in range(alive):
        quantile[w] = _uniform(_absorb(state[w], step))
    if halt_prob > 0.0:
        for w in range(alive):
            if _halts(halt, number[w], step, halt_prob, coupling):
                quantile[w] = -1.0


@njit(**_INNER)
def _keep_walking(alive, node, number, state, at, rank):
    """Close the gaps that ended walkers have left; returns how many still walk."""
    kept = 0
    for w in range(alive):
        if node[w] != _NOWHERE:
            node[kept], number[kept], state[kept], at[kept], rank[kept] = node[w], number[w], state[w], at[w], rank[w]
            kept += 1
    return kept


@intrinsic
def _lowest(context, word):
    """The number of the lowest bit of a word that is not zero."""

    def generate(_, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


@njit(**_INNER)
def _count_walkers(graph, start, move, halt, halt_prob, num_walks, max_length, coupling, latest, walkers, records):
    """Follow the walkers of one row; returns the end of its records. Record 0 stands for none."""
    row_ptr, columns, cumulative, degrees, ids, unit_weights = graph
    node, number, state, at, rank, quantile = walkers
    rec_node, rec_total, rec_length, rec_place, rec_draw = records
    for w in range(num_walks):
        node[w], number[w], state[w], at[w], rank[w] = start, w, _absorb(move, w), _ONE, w
    latest[start] = 1
    rec_node[1], rec_total[1], rec_length[1], rec_place[1] = start, num_walks, 0, 1
    rec_place[0] = 0
    first, end, alive = _ONE, _ONE + _ONE, num_walks
    for step in range(1, max_length + 1):
        if coupling == _REPELLING:
            for k in range(first, end):
                rec_draw[k] = _uniform(_absorb(_absorb(move, ids[rec_node[k]]), step))
            for w in range(alive):
                quantile[w] = _fraction(rank[w] / rec_total[at[w]] + rec_draw[at[w]])
            if halt_prob > 0.0:
                for w in range(alive):
                    quantile[w] = (quantile[w] - halt_prob) / (1.0 - halt_prob)
        else:
            _draw_singly(halt, step, halt_prob, coupling, alive, number, state, quantile)
        first = end
        all_moved = True
        for w in range(alive):
            here = node[w]
            begin = row_ptr[here]
            degree = row_ptr[here + _ONE] - begin
            if degree == _ZERO or quantile[w] < 0.0:
                node[w], all_moved = _NOWHERE, False
                continue
            edge = _choose(cumulative, degrees, unit_weights, here, begin, degree, quantile[w])
            there = np.uint64(columns[edge])
            before = np.uint64(latest[there])
            is_new = before < first
            # The next free record is written in any case, and only kept if it is needed.
            rec_node[end], rec_total[end], rec_length[end], rec_place[end] = there, 0.0, step, rec_place[before] + 1
            r = end if is_new else before
            latest[there] = r
            node[w], at[w], rank[w] = there, r, rec_total[r]
            rec_total[r] += 1.0
            end += np.uint64(is_new)
        if not all_moved:
            alive = _keep_walking(alive, node, number, state, at, rank)
    return np.int64(end)


@njit(**_INNER)
def _write_row(end, start, roots, sym, divisors, latest, marks, records, origin, pair, entry, out):
    """Write the records of one row in order of node and length, from ``pair`` and ``entry`` on; returns the next pair.

    Leaves ``latest`` and ``marks`` empty.
    """
    rec_node, rec_total, rec_length, rec_place, _ = records
    bits, words, blocks = marks
    columns, entry_start, lengths, loads = out
    for r in range(1, end):
        node = rec_node[r]
        word, block = node >> _SIX, node >> np.uint64(12)
        bits[word] |= _ONE << (node & _WORD)
        if words[block] == _ZERO:
            blocks[block >> _SIX] |= _ONE << (block & _WORD)
        words[block] |= _ONE << (word & _WORD)
    pair, base, entry, origin = np.uint64(pair), np.uint64(entry), _ZERO, np.uint64(origin)
    for top in range(len(blocks)):
        while blocks[top] != _ZERO:
            block = np.uint64(top) << _SIX | _lowest(blocks[top])
            blocks[top] &= blocks[top] - _ONE
            rest_words = words[block]
            words[block] = _ZERO
            while rest_words != _ZERO:
                word = block << _SIX | _lowest(rest_words)
                rest_words &= rest_words - _ONE
                rest = bits[word]
                bits[word] = _ZERO
                while rest != _ZERO:
                    node = word << _SIX | _lowest(rest)
                    rest &= rest - _ONE
                    columns[pair], entry_start[pair] = node, base + entry - origin
                    pair += _ONE
                    # From now on, where the entries of the node begin.
                    latest[node], entry = entry, entry + np.uint64(rec_place[latest[node]])
    root = roots[start]
    for r in range(1, end):
        node, length = rec_node[r], rec_length[r]
        place = base + np.uint64(latest[node]) + np.uint64(rec_place[r]) - _ONE
        total = rec_total[r]
        if sym:
            total *= root / roots[node]
        lengths[place], loads[place] = length, total / divisors[length]
    # The walkers have not left yet; the degree of the start node may be zero.
    loads[base + np.uint64(latest[start])] = 1.0
    for r in range(1, end):
        latest[rec_node[r]] = 0
    return np.int64(pair)


@njit(**_INNER)
def _sort(keys, order, count):
    """Put into ``order`` where the keys, all different, are in ascending order; may sort the keys."""
    if count <= _FEW:
        # Every key counts those below it: no branches, and the loop becomes vector instructions.
        for i in range(count):
            place = _ZERO
            for j in range(count):
                place += np.uint64(keys[j] < keys[i])
            order[place] = i
        return
    for i in range(count):
        order[i] = i
    gap = 1
    while 3 * gap + 1 < count:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            key, value = keys[i], order[i]
            j = i
            while j >= gap and keys[j - gap] > key:
                keys[j], order[j] = keys[j - gap], order[j - gap]
                j -= gap
            keys[j], order[j] = key, value
        gap //= 3


@njit(**_INNER)
def _advance(graph, signs, by_degree, move, halt, halt_prob, num_walks, coupling, step, alive, walkers):
    """Let walkers, which are sorted by node, take one step, and sort them again; returns how many still walk."""
    row_ptr, columns, cumulative, degrees, ids, unit_weights = graph
    nodes, numbers, weights, keys, order, moved_nodes, moved_numbers, moved_weights = walkers
    first, moved = 0, 0
    while first < alive:
        here = nodes[first]
        size = 1
        while first + size < alive and nodes[first + size] == here:
            size += 1
        begin = row_ptr[here]
        degree = row_ptr[here + _ONE] - begin
        if degree > _ZERO:
            shared = _uniform(_absorb(_absorb(move, ids[here]), step)) if coupling == _REPELLING else 0.0
            for rank in range(size):
                w = first + rank
                if coupling == _REPELLING:
                    place = _fraction(rank / np.float64(size) + shared)
                    quantile = (place - halt_prob) / (1.0 - halt_prob) if halt_prob > 0.0 else place
                else:
                    quantile = _uniform(_absorb(_absorb(move, numbers[w]), step))
                    if halt_prob > 0.0 and _halts(halt, numbers[w], step, halt_prob, coupling):
                        continue
                if quantile < 0.0:
                    continue
                edge = _choose(cumulative, degrees, unit_weights, here, begin, degree, quantile)
                weight = weights[w]
                if signs.shape[0] > 0:
                    weight = weight * signs[edge]
                if by_degree:
                    weight = weight * degrees[here]
                # A stable sort by node: the place among the survivors breaks ties.
                there = np.uint64(columns[edge])
                keys[moved] = there * np.uint64(num_walks) + np.uint64(moved)
                moved_nodes[moved], moved_numbers[moved], moved_weights[moved] = there, numbers[w], weight
                moved += 1
        first += size
    _sort(keys, order, moved)
    for w in range(moved):
        source = order[w]
        nodes[w], numbers[w], weights[w] = moved_nodes[source], moved_numbers[source], moved_weights[source]
    return moved


@njit(**_INNER)
def _weigh_walkers(
    graph, signs, by_degree, start, move, halt, halt_prob, num_walks, max_length, coupling, latest, walkers, records
):
    """Follow the walkers of one row like :func:`_count_walkers`; weights are summed in the order of the reference."""
    nodes, numbers, weights = walkers[:3]
    rec_node, rec_total, rec_length, rec_place, _ = records
    for w in range(num_walks):
        nodes[w], numbers[w], weights[w] = start, w, 1.0
    latest[start] = 1
    rec_node[1], rec_total[1], rec_length[1], rec_place[1] = start, np.float64(num_walks), 0, 1
    rec_place[0] = 0
    end, alive = 2, num_walks
    for step in range(1, max_length + 1):
        alive = _advance(graph, signs, by_degree, move, halt, halt_prob, num_walks, coupling, step, alive, walkers)
        first = end
        for w in range(alive):
            node = nodes[w]
            before = latest[node]
            if before >= first:
                rec_total[before] += weights[w]
            else:
                rec_node[end], rec_total[end], rec_length[end], rec_place[end] = (
                    node,
                    weights[w],
                    step,
                    rec_place[before] + 1,
                )
                latest[node] = end
                end += 1
        if alive == 0:
            break
    return end


@njit(**_INNER)
def _follow_singly(graph, start, move, halt, halt_prob, num_walks, length, coupling, walkers, out):
    """Write the walks of one row whose walkers go their own ways, [W, length + 1]."""
    row_ptr, columns, cumulative, degrees, _, unit_weights = graph
    node, number, state, at, rank, quantile = walkers
    for w in range(num_walks):
        node[w], number[w], state[w], out[w, 0] = start, w, _absorb(move, w), start
    alive = num_walks
    for step in range(1, length + 1):
        _draw_singly(halt, step, halt_prob, coupling, alive, number, state, quantile)
        all_moved = True
        for w in range(alive):
            here, n = node[w], np.uint64(number[w])
            begin = row_ptr[here]
            degree = row_ptr[here + _ONE] - begin
            if degree == _ZERO or quantile[w] < 0.0:
                node[w], all_moved = _NOWHERE, False
                for rest in range(step, length + 1):
                    out[n, rest] = -1
                continue
            edge = _choose(cumulative, degrees, unit_weights, here, begin, degree, quantile[w])
            there = np.uint64(columns[edge])
            node[w], out[n, step] = there, there
        if not all_moved:
            alive = _keep_walking(alive, node, number, state, at, rank)


@njit(**_INNER)
def _follow_repelling(graph, signs, start, move, halt, halt_prob, num_walks, length, walkers, out):
    """Write the walks of one row whose walkers share draws, [W, length + 1]."""
    nodes, numbers = walkers[:2]
    for w in range(num_walks):
        nodes[w], numbers[w], out[w, 0] = start, w, start
    alive = num_walks
    for step in range(1, length + 1):
        for w in range(num_walks):
            out[w, step] = -1
        alive = _advance(graph, signs, False, move, halt, halt_prob, num_walks, _REPELLING, step, alive, walkers)
        for w in range(alive):
            out[np.uint64(numbers[w]), step] = nodes[w]


def _sample_rows(
    graph,
    signs,
    roots,
    starts,
    move,
    halt,
    halt_prob,
    num_walks,
    max_length,
    coupling,
    by_degree,
    sym,
    divisors,
    block_ptr,
    capacity,
    tables,
    row_ends,
    block_ends,
    out,
):
    """Sample blocks of rows, each into the part of ``out`` from ``capacity`` times its first row on."""
    ids = graph[4]
    for block in prange(block_ptr.shape[0] - 1):
        latest, marks = tables[0][block], (tables[1][block], tables[2][block], tables[3][block])
        node, at, keys = np.empty(num_walks, np.uint64), np.empty(num_walks, np.uint64), np.empty(num_walks, np.uint64)
        number, next_number = np.empty(num_walks, np.int64), np.empty(num_walks, np.int64)
        order, state = np.empty(num_walks, np.uint64), np.empty(num_walks, np.uint64)
        rank, quantile = np.empty(num_walks), np.empty(num_walks)
        weight, next_weight = np.empty(num_walks), np.empty(num_walks)
        # One record stands for none, and one is written before it is known to be needed.
        records = (
            np.empty(capacity + 2, np.uint64),
            np.empty(capacity + 2),
            np.empty(capacity + 2, np.int64),
            np.empty(capacity + 2, np.uint32),
            np.empty(capacity + 2),
        )
        origin = block_ptr[block] * capacity
        pair, entry = origin, origin
        for row in range(block_ptr[block], block_ptr[block + 1]):
            start = starts[row]
            move_state, halt_state = _absorb(move, ids[start]), _absorb(halt, ids[start])
            if by_degree or signs.shape[0] > 0:
                walkers = (node, number, weight, keys, order, at, next_number, next_weight)
                end = _weigh_walkers(
                    graph,
                    signs,
                    by_degree,
                    start,
                    move_state,
                    halt_state,
                    halt_prob,
                    num_walks,
                    max_length,
                    coupling,
                    latest,
                    walkers,
                    records,
                )
            else:
                end = _count_walkers(
                    graph,
                    start,
                    move_state,
                    halt_state,
                    halt_prob,
                    num_walks,
                    max_length,
                    coupling,
                    latest,
                    (node, number, state, at, rank, quantile),
                    records,
                )
            pair = _write_row(end, start, roots, sym, divisors, latest, marks, records, origin, pair, entry, out)
            entry += end - 1
            row_ends[row] = pair
        block_ends[block, 0], block_ends[block, 1] = pair, entry


def _compress(block_ptr, capacity, pair_ptr, entry_ptr, row_ends, parts, row_ptr, out):
    """Copy blocks to where they belong."""
    in_columns, in_starts, in_lengths, in_loads = parts
    columns, starts, lengths, loads = out
    for block in prange(block_ptr.shape[0] - 1):
        first = block_ptr[block] * capacity
        pair, entry = pair_ptr[block], entry_ptr[block]
        num_pairs, num_entries = pair_ptr[block + 1] - pair, entry_ptr[block + 1] - entry
        for row in range(block_ptr[block], block_ptr[block + 1]):
            row_ptr[row + 1] = row_ends[row] - first + pair
        columns[pair : pair + num_pairs] = in_columns[first : first + num_pairs]
        lengths[entry : entry + num_entries] = in_lengths[first : first + num_entries]
        loads[entry : entry + num_entries] = in_loads[first : first + num_entries]
        for k in range(num_pairs):
            starts[pair + k] = in_starts[first + k] + entry


def _walk_rows(graph, starts, move, halt, halt_prob, num_walks, length, coupling, block_ptr, out):
    """Follow every walker of every row, [R, W, length + 1]; -1 once it has ended."""
    ids = graph[4]
    for block in prange(block_ptr.shape[0] - 1):
        node, at, keys = np.empty(num_walks, np.uint64), np.empty(num_walks, np.uint64), np.empty(num_walks, np.uint64)
        number, next_number = np.empty(num_walks, np.int64), np.empty(num_walks, np.int64)
        order, state = np.empty(num_walks, np.uint64), np.empty(num_walks, np.uint64)
        rank, quantile = np.empty(num_walks), np.empty(num_walks)
        weight, next_weight = np.ones(num_walks), np.ones(num_walks)
        walkers = (node, number, weight, keys, order, at, next_number, next_weight)
        signs = np.empty(0)
        for row in range(block_ptr[block], block_ptr[block + 1]):
            start = starts[row]
            move_state, halt_state = _absorb(move, ids[start]), _absorb(halt, ids[start])
            if coupling == _REPELLING:
                _follow_repelling(
                    graph, signs, start, move_state, halt_state, halt_prob, num_walks, length, walkers, out[row]
                )
            else:
                _follow_singly(
                    graph,
                    start,
                    move_state,
                    halt_state,
                    halt_prob,
                    num_walks,
                    length,
                    coupling,
                    (node, number, state, at, rank, quantile),
                    out[row],
                )


_sample_kernel, _compress_kernel, _walk_kernel = Kernel(_sample_rows), Kernel(_compress), Kernel(_walk_rows)


def sample_walks(
    graph: GraphTensors, start_nodes: Tensor, settings: WalkSettings, heads: Sequence[int], dtype: torch.dtype
) -> Loads:
    """Sample walks from ``start_nodes`` [R] on ``graph`` for some heads, one after the other."""
    num_nodes, capacity = len(graph.row_ptr) - 1, settings.num_walks * settings.max_length + 1
    most_rows = max(1, min(len(start_nodes), _ENTRIES_PER_CHUNK // capacity))
    num_rows = len(heads) * len(start_nodes)
    kinds = segments.index_type(num_nodes), length_dtype(settings.max_length), dtype
    output = _Output(num_rows, num_rows * capacity, *(torch.empty(0, dtype=kind).numpy().dtype for kind in kinds))
    num_blocks = len(_blocks(most_rows, num_nodes)) - 1
    # Memory that is zero only when it is first read: a few rows of a large graph touch little of it. It is left empty.
    tables: tuple[np.ndarray, ...] = (
        np.zeros((num_blocks, num_nodes), np.uint32),
        *(np.zeros((num_blocks, (num_nodes >> bits) + 1), np.uint64) for bits in (6, 12, 18)),
    )
    columns, _, lengths, loads = (np.empty(most_rows * capacity, array.dtype) for array in output.arrays)
    parts = columns, np.empty(most_rows * capacity, np.uint32), lengths, loads
    for head in heads:
        for chunk in start_nodes.split(most_rows):
            _sample_chunk(graph, chunk, settings, head, tables, parts, output)
    return output.loads()


class _Output:
    """Loads of some rows after the other.

    The first chunk tells about how many there will be, so that chunks are copied once, to where they stay.
    """

    def __init__(self, num_rows: int, most_entries: int, column_type: Any, length_type: Any, load_type: Any) -> None:
        pointer_type = np.int32 if most_entries < 2**31 else np.int64
        self.row_ptr = np.zeros(num_rows + 1, np.int64)
        # Columns, where the entries of every column begin, lengths and loads.
        self.arrays = [np.empty(0, kind) for kind in (column_type, pointer_type, length_type, load_type)]
        self.num_rows = self.num_pairs = self.num_entries = 0

    def _sizes(self) -> tuple[int, ...]:
        return self.num_pairs, self.num_pairs + 1, self.num_entries, self.num_entries

    def reserve(self, num_rows: int, num_pairs: int, num_entries: int) -> None:
        """Make room for so many more."""
        filled = self.num_rows > 0
        self.num_rows, self.num_pairs = self.num_rows + num_rows, self.num_pairs + num_pairs
        self.num_entries += num_entries
        left = (len(self.row_ptr) - 1) / max(1, self.num_rows)
        for k, size in enumerate(self._sizes()):
            if size > len(self.arrays[k]):
                room = size if left <= 1.0 else int(1.05 * left * size)
                if filled:
                    self.arrays[k].resize(room, refcheck=False)
                else:
                    self.arrays[k] = np.empty(room, self.arrays[k].dtype)

    def loads(self) -> Loads:
        """All that was written; memory that was not needed is given back."""
        for array, size in zip(self.arrays, self._sizes(), strict=True):
            array.resize(size, refcheck=False)
        self.arrays[1][-1] = self.num_entries
        return Loads(*(torch.from_numpy(array) for array in (self.row_ptr, *self.arrays)))


def _sample_chunk(
    graph: GraphTensors,
    start_nodes: Tensor,
    settings: WalkSettings,
    head: int,
    tables: tuple[np.ndarray, ...],
    parts: tuple[np.ndarray, ...],
    output: _Output,
) -> None:
    num_nodes, num_rows = len(graph.row_ptr) - 1, len(start_nodes)
    capacity = settings.num_walks * settings.max_length + 1
    block_ptr = _blocks(num_rows, num_nodes)
    divisors = [settings.divisor(length) for length in range(settings.max_length + 1)]
    row_ends, block_ends = np.empty(num_rows, np.int64), np.empty((len(block_ptr) - 1, 2), np.int64)
    _sample_kernel(
        _unsigned(graph),
        np.zeros(0) if graph.signs is None else graph.signs.numpy(),
        graph.degrees.sqrt().numpy(),
        start_nodes.numpy().view(np.uint64),
        *_keys(settings, head),
        settings.halt_prob,
        settings.num_walks,
        settings.max_length,
        _COUPLINGS[settings.coupling],
        settings.normalization == "none",
        settings.normalization == "sym",
        np.array(divisors),
        block_ptr,
        capacity,
        tables,
        row_ends,
        block_ends,
        parts,
    )
    first = output.num_rows, output.num_pairs, output.num_entries
    sizes = block_ends - block_ptr[:-1, None] * capacity
    output.reserve(num_rows, *sizes.sum(axis=0))
    pair_ptr, entry_ptr = (np.cumsum(np.append(begin, size)) for begin, size in zip(first[1:], sizes.T, strict=True))
    row_ptr = output.row_ptr[first[0] : output.num_rows + 1]
    _compress_kernel(block_ptr, capacity, pair_ptr, entry_ptr, row_ends, parts, row_ptr, tuple(output.arrays))


def random_walks(graph: GraphTensors, start_nodes: Tensor, settings: WalkSettings, head: int) -> Tensor:
    """The nodes that every walker visits, [R, W, L + 1]; -1 once it has ended."""
    num_rows = len(start_nodes)
    out = np.empty((num_rows, settings.num_walks, settings.max_length + 1), np.int64)
    _walk_kernel(
        _unsigned(graph),
        start_nodes.numpy().view(np.uint64),
        *_keys(settings, head),
        settings.halt_prob,
        settings.num_walks,
        settings.max_length,
        _COUPLINGS[settings.coupling],
        _blocks(num_rows, 0),
        out,
    )
    return torch.from_numpy(out)


def _blocks(num_rows: int, num_nodes: int) -> np.ndarray:
    """Rows where the blocks of all threads begin, [blocks + 1]."""
    most = min(-(-num_rows // _ROWS_PER_BLOCK), _TABLE_SIZE // max(num_nodes, 1), torch.get_num_threads())
    return np.linspace(0, num_rows, max(most, 1) + 1).astype(np.int64)


def _keys(settings: WalkSettings, head: int) -> list[np.uint64]:
    """Hash states for moving and halting."""
    states = [int(random.key(settings.seed, head, settings.ensemble, purpose)) for purpose in (MOVE, HALT)]
    return [np.uint64(state & ((1 << 64) - 1)) for state in states]


def _unsigned(graph: GraphTensors) -> tuple:
    row_ptr, columns = graph.row_ptr.numpy().view(np.uint64), graph.columns.numpy()
    columns = columns.view(np.dtype(f"u{columns.itemsize}"))
    return row_ptr, columns, graph.cumulative.numpy(), graph.degrees.numpy(), graph.ids.numpy(), graph.unit_weights
