"""Walks whose weights telescope, compiled: only the number of walkers on a node matters.

A record counts the walkers of one row that are on one node after one number of steps. The latest record of every node
is found by direct address, and every record knows which one of its node it is. Visited nodes are marked in a tree of bit
sets, from which they are read in order. So nothing is searched or sorted, and almost no branch depends on a draw.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from topomask.ops.sample_walks.draws import REPELLING, absorb, choose, draw_singly, fraction, uniform

_ZERO, _ONE, _SIX, _WORD = np.uint64(0), np.uint64(1), np.uint64(6), np.uint64(63)


@intrinsic
def _lowest(context, word):
    """The number of the lowest bit of a word that is not zero."""

    def generate(_, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


@njit(error_model="numpy", _nrt=False)
def walk(graph, start, move, halt, halt_prob, num_walks, max_length, coupling, latest, walkers, records):
    """Follow the walkers of one row; returns the end of its records. Record 0 stands for none."""
    row_ptr, columns, cumulative, degrees, ids, unit_weights = graph
    node, number, at, rank, quantile = walkers
    rec_node, rec_total, rec_length, rec_place, rec_draw = records
    for w in range(num_walks):
        node[w], number[w], at[w], rank[w] = start, w, _ONE, w
    latest[start] = 1
    rec_node[1], rec_total[1], rec_length[1], rec_place[1] = start, num_walks, 0, 1
    rec_place[0] = 0
    first, end, alive = _ONE, np.uint64(2), num_walks
    for step in range(1, max_length + 1):
        if coupling == REPELLING:
            for r in range(first, end):
                rec_draw[r] = uniform(absorb(absorb(move, ids[rec_node[r]]), step))
            for w in range(alive):
                place = fraction(rank[w] / rec_total[at[w]] + rec_draw[at[w]])
                quantile[w] = (place - halt_prob) / (1.0 - halt_prob) if halt_prob > 0.0 else place
        else:
            for w in range(alive):
                quantile[w] = draw_singly(move, halt, number[w], step, halt_prob, coupling)
        first, moved = end, _ZERO
        for w in range(alive):
            here = node[w]
            begin = row_ptr[here]
            degree = row_ptr[here + _ONE] - begin
            if degree == _ZERO or quantile[w] < 0.0:
                continue
            there = columns[choose(cumulative, degrees, unit_weights, here, begin, degree, quantile[w])]
            before = np.uint64(latest[there])
            is_new = before < first
            # The next free record is written in any case, and only kept if it is needed.
            rec_node[end], rec_total[end], rec_length[end], rec_place[end] = there, 0.0, step, rec_place[before] + 1
            r = end if is_new else before
            latest[there] = r
            node[moved], number[moved], at[moved], rank[moved] = there, number[w], r, rec_total[r]
            rec_total[r] += 1.0
            end += np.uint64(is_new)
            moved += _ONE
        alive = np.int64(moved)
        if alive == 0:
            break
    return np.int64(end)


@njit(error_model="numpy", _nrt=False)
def write(end, start, roots, sym, divisors, latest, marks, records, pair, entry, out):
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
    pair, base, entry = np.uint64(pair), np.uint64(entry), _ZERO
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
                    columns[pair], entry_start[pair] = node, base + entry
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
