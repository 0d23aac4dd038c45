"""Loads of walks: the walkers of every row, merged by node and number of steps.

Every thread samples a block of rows and writes them one after the other; then all blocks are copied to their final
place. A record sums up the walkers of one row that are at the same node after the same number of steps. The latest
record of every node is looked up in a table, and every record has its number among those of its node. Visited nodes are
marked in a tree of bit sets, from which they are read in order. So records are neither searched nor sorted, and almost
no branch depends on a draw if weights telescope. Otherwise (signed weights, no normalisation), every walker carries its
own weight, and walkers are sorted by node as in the reference, so that sums have the same order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from topomask.ops.backend import EXACT, BlockKernel
from topomask.ops.sample_walks.numba.walkers import (
    NOWHERE,
    ONE,
    REPELLING,
    ZERO,
    absorb,
    advance,
    choose_edge,
    draw_singly,
    ends,
    fraction,
    keep_walking,
    row_states,
    sorted_walkers_of,
    uniform,
    walkers_of,
    without_halting,
)

# A word of a bit set holds 2**6 bits, and a word of words 2**12.
_SIX, _TWELVE, _IN_WORD = np.uint64(6), np.uint64(12), np.uint64(63)


class Records(NamedTuple):
    """Walkers of one row that are at the same node after the same number of steps; record 0 means none."""

    node: np.ndarray  # uint64
    total: np.ndarray  # number of walkers, or sum of their weights
    length: np.ndarray
    place: np.ndarray  # number of records of the same node up to this one
    draw: np.ndarray  # the draw that repelling walkers of the record share


def make_records(num_blocks: int, capacity: int) -> Records:
    """Allocate memory for the records of every block."""
    # Record 0 means none, and one record is written before it is known whether it is needed.
    kinds = np.uint64, np.float64, np.int64, np.uint32, np.float64
    return Records(*(np.empty((num_blocks, capacity + 2), kind) for kind in kinds))


class Tables(NamedTuple):
    """Memory that one block needs for every node of the graph; all zero between rows."""

    latest: np.ndarray  # [N], the last record of every node
    bits: np.ndarray  # a bit for every node that was visited
    words: np.ndarray  # a bit for every word of `bits` that is not zero
    blocks: np.ndarray  # a bit for every word of `words` that is not zero


class Scales(NamedTuple):
    """What turns records into loads."""

    roots: np.ndarray  # [N], square roots of degrees for the normalisation "sym"; else empty
    divisors: np.ndarray  # [L + 1]


class LoadArrays(NamedTuple):
    """Columns of rows, and (length, load) pairs of columns."""

    columns: np.ndarray
    entry_ptr: np.ndarray  # where the pairs of every column begin
    lengths: np.ndarray
    loads: np.ndarray


@intrinsic
def _lowest(context, word):
    """Return the index of the lowest set bit of a word that is not zero."""

    def generate(_, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


@njit(forceinline=True, **EXACT)
def _first_record(start, num_walks, latest, records):
    """Record all walkers at their start node."""
    latest[start] = 1
    records.node[1], records.total[1], records.length[1], records.place[1] = start, np.float64(num_walks), 0, 1
    records.place[0] = 0


@njit(forceinline=True, **EXACT)
def _draw_together(halt_prob, move, ids, step, first, end, alive, walkers, records):
    """Set the quantiles of repelling walkers, which are counted in records from ``first`` to ``end``."""
    record, rank, quantile = walkers.record, walkers.rank, walkers.quantile
    for k in range(first, end):
        records.draw[k] = uniform(absorb(absorb(move, ids[records.node[k]]), step))
    for w in range(alive):
        quantile[w] = fraction(rank[w] / records.total[record[w]] + records.draw[record[w]])
    if halt_prob > 0.0:
        for w in range(alive):
            quantile[w] = without_halting(quantile[w], halt_prob)


@njit(**EXACT)
def _count_walkers(graph, settings, states, start, latest, walkers, records):
    """Follow the walkers of one row; returns the end of its records."""
    node, number, state, record, rank, quantile = walkers
    rec_node, rec_total, rec_length, rec_place, _ = records
    for w in range(settings.num_walks):
        node[w], number[w], state[w], record[w], rank[w] = start, w, absorb(states.move, w), ONE, w
    _first_record(start, settings.num_walks, latest, records)
    first, end, alive = ONE, ONE + ONE, settings.num_walks
    for step in range(1, settings.max_length + 1):
        if settings.coupling == REPELLING:
            _draw_together(settings.halt_prob, states.move, graph.ids, step, first, end, alive, walkers, records)
        else:
            draw_singly(settings, states, step, alive, walkers)
        first = end
        all_moved = True
        for w in range(alive):
            here = node[w]
            if ends(graph, here, quantile[w]):
                node[w], all_moved = NOWHERE, False
                continue
            there = np.uint64(graph.columns[choose_edge(graph, here, quantile[w])])
            before = np.uint64(latest[there])
            is_new = before < first
            # The next free record is written in any case, and only kept if it is needed.
            rec_node[end], rec_total[end], rec_length[end], rec_place[end] = there, 0.0, step, rec_place[before] + 1
            r = end if is_new else before
            latest[there] = r
            node[w], record[w], rank[w] = there, r, rec_total[r]
            rec_total[r] += 1.0
            end += np.uint64(is_new)
        if not all_moved:
            alive = keep_walking(alive, walkers)
    return np.int64(end)


@njit(**EXACT)
def _weigh_walkers(graph, settings, states, start, latest, walkers, records):
    """Follow the walkers of one row like :func:`_count_walkers`; weights are summed in the order of the reference."""
    node, number, weight = walkers.node, walkers.number, walkers.weight
    rec_node, rec_total, rec_length, rec_place, _ = records
    for w in range(settings.num_walks):
        node[w], number[w], weight[w] = start, w, 1.0
    _first_record(start, settings.num_walks, latest, records)
    end, alive = 2, settings.num_walks
    for step in range(1, settings.max_length + 1):
        alive = advance(graph, settings, states, step, alive, walkers)
        first = end
        for w in range(alive):
            there = node[w]
            before = latest[there]
            if before >= first:
                rec_total[before] += weight[w]
            else:
                rec_node[end], rec_total[end], rec_length[end] = there, weight[w], step
                rec_place[end] = rec_place[before] + 1
                latest[there] = end
                end += 1
        if alive == 0:
            break
    return end


@njit(forceinline=True, **EXACT)
def _mark_nodes(end, records, tables):
    """Set the bits of all nodes that have records."""
    bits, words, blocks = tables.bits, tables.words, tables.blocks
    for r in range(1, end):
        node = records.node[r]
        word, block = node >> _SIX, node >> _TWELVE
        bits[word] |= ONE << (node & _IN_WORD)
        if words[block] == ZERO:
            blocks[block >> _SIX] |= ONE << (block & _IN_WORD)
        words[block] |= ONE << (word & _IN_WORD)


@njit(forceinline=True, **EXACT)
def _list_nodes(records, tables, pair, offset, out):
    """Write marked nodes in order, as columns from ``pair`` on, and clear their bits; returns the next pair.

    Entries of the row begin at ``offset``. Afterwards, ``latest`` is where those of a node begin, counted from there.
    """
    latest, bits, words, blocks = tables
    pair, entry = np.uint64(pair), ZERO
    for top in range(len(blocks)):
        while blocks[top] != ZERO:
            block = np.uint64(top) << _SIX | _lowest(blocks[top])
            blocks[top] &= blocks[top] - ONE
            rest_words = words[block]
            words[block] = ZERO
            while rest_words != ZERO:
                word = block << _SIX | _lowest(rest_words)
                rest_words &= rest_words - ONE
                rest = bits[word]
                bits[word] = ZERO
                while rest != ZERO:
                    node = word << _SIX | _lowest(rest)
                    rest &= rest - ONE
                    out.columns[pair], out.entry_ptr[pair] = node, offset + entry
                    pair += ONE
                    latest[node], entry = entry, entry + np.uint64(records.place[latest[node]])
    return np.int64(pair)


@njit(**EXACT)
def _write_row(end, start, scales, tables, records, origin, pair, entry, out):
    """Write the records of one row in order of node and length, from ``pair`` and ``entry`` on; returns the next pair.

    Resets all tables to zero.
    """
    latest = tables.latest
    base = np.uint64(entry)
    _mark_nodes(end, records, tables)
    next_pair = _list_nodes(records, tables, pair, base - np.uint64(origin), out)
    sym = scales.roots.shape[0] > 0
    root = scales.roots[start] if sym else 1.0
    for r in range(1, end):
        node, length = records.node[r], records.length[r]
        place = base + np.uint64(latest[node]) + np.uint64(records.place[r]) - ONE
        total = records.total[r]
        if sym:
            total *= root / scales.roots[node]
        out.lengths[place], out.loads[place] = length, total / scales.divisors[length]
    # No walker has left the start node at length 0. Its degree may be zero, so this load is not computed as above.
    out.loads[base + np.uint64(latest[start])] = 1.0
    for r in range(1, end):
        latest[records.node[r]] = 0
    return next_pair


def _sample_rows(
    start_block, stop_block, graph, settings, all_walkers, all_sorted_walkers, states, scales, starts, block_ptr,
    capacity, all_tables, all_records, row_ends, block_ends, out,
):  # fmt: skip
    """Sample blocks of rows, each into the part of ``out`` that begins at ``capacity`` times its first row.

    Walkers are only counted if their weights telescope, and sorted otherwise. The arrays for the other case are None,
    whose branch Numba does not compile.
    """
    for block in range(start_block, stop_block):
        tables = Tables(
            all_tables.latest[block], all_tables.bits[block], all_tables.words[block], all_tables.blocks[block]
        )
        if all_walkers is not None:
            walkers = walkers_of(all_walkers, block)
        if all_sorted_walkers is not None:
            sorted_walkers = sorted_walkers_of(all_sorted_walkers, block)
        node, total, length, place, draw = all_records
        records = Records(node[block], total[block], length[block], place[block], draw[block])
        origin = block_ptr[block] * capacity
        pair, entry = origin, origin
        for row in range(block_ptr[block], block_ptr[block + 1]):
            start = starts[row]
            own = row_states(states, graph.ids[start])
            if all_walkers is not None:
                end = _count_walkers(graph, settings, own, start, tables.latest, walkers, records)
            if all_sorted_walkers is not None:
                end = _weigh_walkers(graph, settings, own, start, tables.latest, sorted_walkers, records)
            pair = _write_row(end, start, scales, tables, records, origin, pair, entry, out)
            entry += end - 1
            row_ends[row] = pair
        block_ends[block, 0], block_ends[block, 1] = pair, entry


def _compress(start_block, stop_block, block_ptr, capacity, pair_ptr, entry_ptr, row_ends, parts, row_ptr, out):
    """Copy blocks to their final place."""
    for block in range(start_block, stop_block):
        origin, first_pair = block_ptr[block] * capacity, pair_ptr[block]
        for row in range(block_ptr[block], block_ptr[block + 1]):
            row_ptr[row + 1] = row_ends[row] - origin + first_pair
        first, pair, entry = np.uint64(origin), np.uint64(first_pair), np.uint64(entry_ptr[block])
        num_pairs, num_entries = np.uint64(pair_ptr[block + 1]) - pair, np.uint64(entry_ptr[block + 1]) - entry
        # Not with slices, which Numba is slow to compile.
        for k in range(num_pairs):
            out.columns[pair + k] = parts.columns[first + k]
        for k in range(num_pairs):
            out.entry_ptr[pair + k] = parts.entry_ptr[first + k] + entry
        for k in range(num_entries):
            out.lengths[entry + k] = parts.lengths[first + k]
        for k in range(num_entries):
            out.loads[entry + k] = parts.loads[first + k]


sample_kernel, compress_kernel = BlockKernel(_sample_rows), BlockKernel(_compress)
