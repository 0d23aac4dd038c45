"""Random walks, compiled: the same bits as the reference.

Every thread samples a block of rows one by one, writes them one after the other, and at the end all blocks are copied to
where they belong.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import prange
from torch import Tensor

from topomask.ops.backend import Kernel
from topomask.ops.sample_walks import counts, random, singly
from topomask.ops.sample_walks.draws import COUPLINGS, absorb
from topomask.ops.sample_walks.reference import HALT, MOVE, GraphTensors, Loads, WalkSettings, join_loads, result_dtypes

# Entries that a chunk of rows may leave at most; bounds the memory that does not end up in the result.
_ENTRIES_PER_CHUNK = 1 << 23
# Nodes that all threads together keep records of at most; bounds memory on large graphs with many threads.
_TABLE_SIZE = 1 << 28
_ROWS_PER_BLOCK = 32


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
        number, order = np.empty(num_walks, np.int64), np.empty(num_walks, np.int64)
        next_number = np.empty(num_walks, np.int64)
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
        pair = entry = block_ptr[block] * capacity
        for row in range(block_ptr[block], block_ptr[block + 1]):
            start = starts[row]
            move_state, halt_state = absorb(move, ids[start]), absorb(halt, ids[start])
            if by_degree or signs.shape[0] > 0:
                walkers = (node, number, weight, keys, order, next_number, next_weight)
                end = singly.walk(
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
                end = counts.walk(
                    graph,
                    start,
                    move_state,
                    halt_state,
                    halt_prob,
                    num_walks,
                    max_length,
                    coupling,
                    latest,
                    (node, number, at, rank, quantile),
                    records,
                )
            pair = counts.write(end, start, roots, sym, divisors, latest, marks, records, pair, entry, out)
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
            starts[pair + k] = in_starts[first + k] - first + entry


_sample_kernel, _compress_kernel = Kernel(_sample_rows), Kernel(_compress)


def sample_walks(
    graph: GraphTensors, start_nodes: Tensor, settings: WalkSettings, head: int, dtype: torch.dtype
) -> Loads:
    """Sample walks from ``start_nodes`` [R] on ``graph`` for one head."""
    capacity = settings.num_walks * settings.max_length + 1
    rows = max(1, _ENTRIES_PER_CHUNK // capacity)
    chunks = start_nodes.split(rows) or (start_nodes,)
    return join_loads([_sample_chunk(graph, chunk, settings, head, dtype) for chunk in chunks])


def _sample_chunk(
    graph: GraphTensors, start_nodes: Tensor, settings: WalkSettings, head: int, dtype: torch.dtype
) -> Loads:
    num_nodes, num_rows = len(graph.row_ptr) - 1, len(start_nodes)
    capacity = settings.num_walks * settings.max_length + 1
    block_ptr = _blocks(num_rows, num_nodes)
    num_blocks = len(block_ptr) - 1
    # Memory that is zero only when it is first read: a few rows of a large graph touch little of it.
    tables = (
        np.zeros((num_blocks, num_nodes), np.uint32),
        *(np.zeros((num_blocks, (num_nodes >> bits) + 1), np.uint64) for bits in (6, 12, 18)),
    )
    divisors = [settings.num_walks * (1.0 - settings.halt_prob) ** k for k in range(settings.max_length + 1)]
    dtypes = (*result_dtypes(num_nodes, settings.max_length), dtype)
    columns, lengths, loads = (torch.empty(0, dtype=kind).numpy().dtype for kind in dtypes)

    def empty(pairs: int, entries: int) -> tuple[np.ndarray, ...]:
        return np.empty(pairs, columns), np.empty(pairs, np.int64), np.empty(entries, lengths), np.empty(entries, loads)

    parts = empty(num_rows * capacity, num_rows * capacity)
    row_ends, block_ends = np.empty(num_rows, np.int64), np.empty((num_blocks, 2), np.int64)
    _sample_kernel(
        _unsigned(graph),
        np.zeros(0) if graph.signs is None else graph.signs.numpy(),
        graph.degrees.sqrt().numpy(),
        start_nodes.numpy().view(np.uint64),
        *_keys(settings, head),
        settings.halt_prob,
        settings.num_walks,
        settings.max_length,
        COUPLINGS[settings.coupling],
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
    pair_ptr, entry_ptr = (np.append(0, np.cumsum(ends - block_ptr[:-1] * capacity)) for ends in block_ends.T)
    row_ptr = np.zeros(num_rows + 1, np.int64)
    out = empty(pair_ptr[-1], entry_ptr[-1])
    starts = np.empty(pair_ptr[-1] + 1, np.int64)
    starts[-1] = entry_ptr[-1]
    out = (out[0], starts, out[2], out[3])
    _compress_kernel(block_ptr, capacity, pair_ptr, entry_ptr, row_ends, parts, row_ptr, out)
    return Loads(*(torch.from_numpy(array) for array in (row_ptr, *out)))


def _blocks(num_rows: int, num_nodes: int) -> np.ndarray:
    """Rows where the blocks of all threads begin, [blocks + 1]."""
    most = min(-(-num_rows // _ROWS_PER_BLOCK), _TABLE_SIZE // max(num_nodes, 1), torch.get_num_threads())
    return np.linspace(0, num_rows, max(most, 1) + 1).astype(np.int64)


def _keys(settings: WalkSettings, head: int) -> list[np.uint64]:
    """Hash states for moving and halting."""
    states = [int(random.key(settings.seed, head, settings.ensemble, purpose)) for purpose in (MOVE, HALT)]
    return [np.uint64(state & ((1 << 64) - 1)) for state in states]


def _unsigned(graph: GraphTensors) -> tuple:
    row_ptr, columns = (tensor.numpy().view(np.uint64) for tensor in (graph.row_ptr, graph.columns))
    return row_ptr, columns, graph.cumulative.numpy(), graph.degrees.numpy(), graph.ids.numpy(), graph.unit_weights
