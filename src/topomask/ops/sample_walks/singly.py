"""Walkers that carry a weight or a name of their own, compiled."""

from __future__ import annotations

import numpy as np
from numba import njit

from topomask.ops.sample_walks.draws import REPELLING, absorb, choose, draw_singly, fraction, uniform

_ZERO, _ONE = np.uint64(0), np.uint64(1)


@njit(error_model="numpy", _nrt=False)
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


@njit(error_model="numpy", _nrt=False)
def advance(graph, signs, by_degree, move, halt, halt_prob, num_walks, coupling, step, alive, walkers):
    """Let walkers, which are sorted by node, take one step, and sort them again; returns how many still walk."""
    row_ptr, columns, cumulative, degrees, ids, unit_weights = graph
    nodes, numbers, weights, keys, order, moved_numbers, moved_weights = walkers
    first, moved = 0, 0
    while first < alive:
        here = nodes[first]
        size = 1
        while first + size < alive and nodes[first + size] == here:
            size += 1
        begin = row_ptr[here]
        degree = row_ptr[here + _ONE] - begin
        if degree > _ZERO:
            shared = uniform(absorb(absorb(move, ids[here]), step)) if coupling == REPELLING else 0.0
            for rank in range(size):
                w = first + rank
                if coupling == REPELLING:
                    place = fraction(rank / np.float64(size) + shared)
                    quantile = (place - halt_prob) / (1.0 - halt_prob) if halt_prob > 0.0 else place
                else:
                    quantile = draw_singly(move, halt, numbers[w], step, halt_prob, coupling)
                if quantile < 0.0:
                    continue
                edge = choose(cumulative, degrees, unit_weights, here, begin, degree, quantile)
                weight = weights[w]
                if signs.shape[0] > 0:
                    weight = weight * signs[edge]
                if by_degree:
                    weight = weight * degrees[here]
                # A stable sort by node: the place among the survivors breaks ties.
                keys[moved], order[moved] = columns[edge] * np.uint64(num_walks) + np.uint64(moved), moved
                moved_numbers[moved], moved_weights[moved] = numbers[w], weight
                moved += 1
        first += size
    _sort(keys, order, moved)
    for w in range(moved):
        source = order[w]
        nodes[w] = keys[w] // np.uint64(num_walks)
        numbers[w], weights[w] = moved_numbers[source], moved_weights[source]
    return moved


@njit(error_model="numpy", _nrt=False)
def walk(
    graph, signs, by_degree, start, move, halt, halt_prob, num_walks, max_length, coupling, latest, walkers, records
):
    """Follow the walkers of one row, see :func:`counts.walk`; records sum up weights in the order of the reference."""
    nodes, numbers, weights = walkers[:3]
    rec_node, rec_total, rec_length, rec_place, _ = records
    for w in range(num_walks):
        nodes[w], numbers[w], weights[w] = start, w, 1.0
    latest[start] = 1
    rec_node[1], rec_total[1], rec_length[1], rec_place[1] = start, np.float64(num_walks), 0, 1
    rec_place[0] = 0
    end, alive = 2, num_walks
    for step in range(1, max_length + 1):
        alive = advance(
            graph, signs, by_degree, move, halt, halt_prob, num_walks, coupling, step, alive, walkers
        )
        first = end
        for w in range(alive):
            node = nodes[w]
            before = latest[node]
            if before >= first:
                rec_total[before] += weights[w]
            else:
                rec_node[end], rec_total[end], rec_length[end], rec_place[end] = node, weights[w], step, rec_place[before] + 1
                latest[node] = end
                end += 1
        if alive == 0:
            break
    return end
