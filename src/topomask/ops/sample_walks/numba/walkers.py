"""How walkers move: their draws, the edges they choose, and the steps of all walkers of one row; and plain walks.

Walkers move independently (coupling "iid" or "antithetic"), or those at the same node share a draw ("repelling").
Nodes and positions are unsigned: Numba would check for every signed index whether it counts from the end.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from topomask.ops.backend import EXACT, BlockKernel

IID, ANTITHETIC, REPELLING = 0, 1, 2

ZERO, ONE = np.uint64(0), np.uint64(1)
# The node of walkers that have ended.
NOWHERE = np.uint64((1 << 64) - 1)

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
# Up to this many walkers are sorted by comparing all pairs.
_FEW = 64


class Graph(NamedTuple):
    """The part of a graph that walkers read."""

    row_ptr: np.ndarray  # [N + 1], uint64
    columns: np.ndarray  # [nnz], unsigned
    cumulative: np.ndarray  # [nnz], running sum of |weights| in every row
    signs: np.ndarray  # [nnz], empty if no weight is negative
    degrees: np.ndarray  # [N]
    ids: np.ndarray  # [N]
    unit_weights: bool


class Settings(NamedTuple):
    """How walks are sampled and weighted."""

    num_walks: int
    max_length: int
    halt_prob: float
    coupling: int
    weight_by_degree: bool


class HashStates(NamedTuple):
    """The initial hash states of the draws for moving and for halting."""

    move: np.uint64
    halt: np.uint64


class Walkers(NamedTuple):
    """Walkers of one row that have not ended, [W]."""

    node: np.ndarray  # uint64
    number: np.ndarray  # which walker it is
    state: np.ndarray  # hash state for moving that has absorbed the number
    record: np.ndarray  # the record that counts it
    rank: np.ndarray  # how many walkers of its record came before it
    quantile: np.ndarray  # the draw for the next step; negative if it halts


class SortedWalkers(NamedTuple):
    """Walkers of one row that have not ended, sorted by the node they are at, and scratch to move them, [W]."""

    node: np.ndarray  # uint64
    number: np.ndarray  # which walker it is
    weight: np.ndarray  # product of W / p along the walk, if that does not telescope
    key: np.ndarray
    order: np.ndarray
    next_node: np.ndarray
    next_number: np.ndarray
    next_weight: np.ndarray


def make_walkers(num_blocks: int, num_walks: int, is_sorted: bool) -> tuple[Walkers | None, SortedWalkers | None]:
    """Memory for the walkers of every block, [blocks, W], of one kind, and None for the other."""

    def empty(*kinds: Any) -> list[np.ndarray]:
        return [np.empty((num_blocks, num_walks), kind) for kind in kinds]

    word, integer, number = np.uint64, np.int64, np.float64
    if is_sorted:
        return None, SortedWalkers(*empty(word, integer, number, word, word, word, integer, number))
    return Walkers(*empty(word, integer, word, word, number, number)), None


@njit(forceinline=True, **EXACT)
def walkers_of(walkers, block):
    """The walkers of one block."""
    node, number, state, record, rank, quantile = walkers
    return Walkers(node[block], number[block], state[block], record[block], rank[block], quantile[block])


@njit(forceinline=True, **EXACT)
def sorted_walkers_of(walkers, block):
    """The walkers of one block, and their scratch."""
    node, number, weight, key, order, next_node, next_number, next_weight = walkers
    return SortedWalkers(
        node[block], number[block], weight[block], key[block], order[block],
        next_node[block], next_number[block], next_weight[block],
    )  # fmt: skip


@njit(forceinline=True, **EXACT)
def absorb(state, word):
    """Return the hash state after one more word."""
    x = (state + _GOLDEN) ^ np.uint64(word)
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


@njit(forceinline=True, **EXACT)
def row_states(states, start_id):
    """Return the hash states of walkers that start at one node."""
    return HashStates(absorb(states.move, start_id), absorb(states.halt, start_id))


@njit(forceinline=True, **EXACT)
def uniform(state):
    """Return a float64 in [0, 1) with 53 random bits."""
    return np.float64(np.int64(state >> np.uint64(11))) * 2.0**-53


@njit(forceinline=True, **EXACT)
def fraction(x):
    """Return the fractional part of x in [0, 2)."""
    return x - 1.0 if x >= 1.0 else x


@njit(forceinline=True, **EXACT)
def without_halting(quantile, halt_prob):
    """Rescale a quantile that also decides about halting, for moving; negative if the walker halts."""
    return (quantile - halt_prob) / (1.0 - halt_prob)


@njit(forceinline=True, **EXACT)
def ends(graph, here, quantile):
    """Whether a walker ends: it halts, which a negative quantile means, or its node has no out-edges."""
    return graph.row_ptr[here] == graph.row_ptr[here + ONE] or quantile < 0.0


@njit(forceinline=True, **EXACT)
def choose_edge(graph, here, quantile):
    """Return the position of the edge whose share of the node's total weight contains the quantile."""
    begin = graph.row_ptr[here]
    degree = graph.row_ptr[here + ONE] - begin
    if graph.unit_weights:
        # The total weight is the degree, and float64 represents all integers below 2**53 exactly.
        place = np.uint64(np.int64(quantile * np.float64(np.int64(degree))))
        return begin + min(place, degree - ONE)
    target = quantile * graph.degrees[here]
    low, high = np.uint64(0), degree - ONE
    while low < high:
        middle = (low + high) >> ONE
        if graph.cumulative[begin + middle] > target:
            high = middle
        else:
            low = middle + ONE
    return begin + low


@njit(forceinline=True, **EXACT)
def _halts(settings, states, number, step):
    """Whether a walker that moves independently halts before a step."""
    if settings.coupling == ANTITHETIC:
        shared = uniform(absorb(absorb(states.halt, number // 2), step))
        return fraction(shared + 0.5 * (number % 2)) < settings.halt_prob
    return uniform(absorb(absorb(states.halt, number), step)) < settings.halt_prob


@njit(**EXACT)
def draw_singly(settings, states, step, alive, walkers):
    """Set the quantiles of walkers that move independently, negative if they halt."""
    quantile = walkers.quantile
    for w in range(alive):
        quantile[w] = uniform(absorb(walkers.state[w], step))
    if settings.halt_prob > 0.0:
        for w in range(alive):
            if _halts(settings, states, walkers.number[w], step):
                quantile[w] = -1.0


@njit(**EXACT)
def keep_walking(alive, walkers):
    """Remove walkers that have ended; returns how many remain."""
    node, number, state, record, rank, _ = walkers
    kept = 0
    for w in range(alive):
        if node[w] != NOWHERE:
            node[kept], number[kept], state[kept] = node[w], number[w], state[w]
            record[kept], rank[kept] = record[w], rank[w]
            kept += 1
    return kept


@njit(**EXACT)
def _sort(key, order, count):
    """Write the indices that sort the keys, which must be distinct, to ``order``; may also sort the keys."""
    if count <= _FEW:
        # Counts the keys below every key: without branches, the loop becomes vector instructions.
        for i in range(count):
            place = ZERO
            for j in range(count):
                place += np.uint64(key[j] < key[i])
            order[place] = i
        return
    for i in range(count):
        order[i] = i
    gap = 1
    while 3 * gap + 1 < count:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            moving, value = key[i], order[i]
            j = i
            while j >= gap and key[j - gap] > moving:
                key[j], order[j] = key[j - gap], order[j - gap]
                j -= gap
            key[j], order[j] = moving, value
        gap //= 3


@njit(forceinline=True, **EXACT)
def _draw_sorted(settings, states, step, number, rank, size, shared):
    """Return the quantile of a walker, the ``rank``-th of ``size`` at its node; negative if it halts."""
    if settings.coupling == REPELLING:
        quantile = fraction(rank / np.float64(size) + shared)
        return without_halting(quantile, settings.halt_prob) if settings.halt_prob > 0.0 else quantile
    if settings.halt_prob > 0.0 and _halts(settings, states, number, step):
        return -1.0
    return uniform(absorb(absorb(states.move, number), step))


@njit(**EXACT)
def advance(graph, settings, states, step, alive, walkers):
    """Let walkers, which are sorted by node, take one step, and sort them again; returns how many remain."""
    node, number, weight, key, order, next_node, next_number, next_weight = walkers
    first, moved = 0, 0
    while first < alive:
        here = node[first]
        size = 1
        while first + size < alive and node[first + size] == here:
            size += 1
        shared = 0.0
        if settings.coupling == REPELLING:
            shared = uniform(absorb(absorb(states.move, graph.ids[here]), step))
        for rank in range(size):
            w = first + rank
            quantile = _draw_sorted(settings, states, step, number[w], rank, size, shared)
            if ends(graph, here, quantile):
                continue
            edge = choose_edge(graph, here, quantile)
            product = weight[w]
            if graph.signs.shape[0] > 0:
                product = product * graph.signs[edge]
            if settings.weight_by_degree:
                product = product * graph.degrees[here]
            # A stable sort by node: the place among the remaining walkers breaks ties.
            there = np.uint64(graph.columns[edge])
            key[moved] = there * np.uint64(settings.num_walks) + np.uint64(moved)
            next_node[moved], next_number[moved], next_weight[moved] = there, number[w], product
            moved += 1
        first += size
    _sort(key, order, moved)
    for w in range(moved):
        source = order[w]
        node[w], number[w], weight[w] = next_node[source], next_number[source], next_weight[source]
    return moved


@njit(**EXACT)
def _follow_singly(graph, settings, states, start, walkers, out):
    """Write the walks of one row whose walkers move independently, [W, L + 1]."""
    node, number = walkers.node, walkers.number
    for w in range(settings.num_walks):
        node[w], number[w], walkers.state[w], out[w, 0] = start, w, absorb(states.move, w), start
    alive = settings.num_walks
    for step in range(1, settings.max_length + 1):
        draw_singly(settings, states, step, alive, walkers)
        all_moved = True
        for w in range(alive):
            here, row, quantile = node[w], np.uint64(number[w]), walkers.quantile[w]
            if ends(graph, here, quantile):
                node[w], all_moved = NOWHERE, False
                for rest in range(step, settings.max_length + 1):
                    out[row, rest] = -1
                continue
            there = np.uint64(graph.columns[choose_edge(graph, here, quantile)])
            node[w], out[row, step] = there, there
        if not all_moved:
            alive = keep_walking(alive, walkers)


@njit(**EXACT)
def _follow_repelling(graph, settings, states, start, walkers, out):
    """Write the walks of one row whose walkers share draws, [W, L + 1]."""
    node, number = walkers.node, walkers.number
    for w in range(settings.num_walks):
        node[w], number[w], walkers.weight[w], out[w, 0] = start, w, 1.0, start
    alive = settings.num_walks
    for step in range(1, settings.max_length + 1):
        for w in range(settings.num_walks):
            out[w, step] = -1
        alive = advance(graph, settings, states, step, alive, walkers)
        for w in range(alive):
            out[np.uint64(number[w]), step] = node[w]


def _follow_rows(
    start_block, stop_block, graph, settings, states, starts, block_ptr, all_walkers, all_sorted_walkers, out
):
    """Follow every walker of every row, [R, W, L + 1]; -1 once it has ended. There are walkers of one kind."""
    for block in range(start_block, stop_block):
        if all_walkers is not None:
            walkers = walkers_of(all_walkers, block)
        if all_sorted_walkers is not None:
            sorted_walkers = sorted_walkers_of(all_sorted_walkers, block)
        for row in range(block_ptr[block], block_ptr[block + 1]):
            start = starts[row]
            own = row_states(states, graph.ids[start])
            if all_sorted_walkers is not None:
                _follow_repelling(graph, settings, own, start, sorted_walkers, out[row])
            if all_walkers is not None:
                _follow_singly(graph, settings, own, start, walkers, out[row])


follow_kernel = BlockKernel(_follow_rows)
