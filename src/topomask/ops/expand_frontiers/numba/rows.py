"""The kernel: frontiers of every row, one step after the other, and then its columns."""

from __future__ import annotations

import numpy as np
from numba import njit

from topomask.ops.backend import ALLOCATING, BlockKernel
from topomask.ops.expand_frontiers.numba.columns import Columns, cut_columns, find_columns, write_row
from topomask.ops.expand_frontiers.numba.frontiers import (
    Entries,
    Table,
    drop_zeros,
    keep_largest,
    spread,
    spread_some,
    thin,
)
from topomask.ops.expand_frontiers.numba.order import Candidates
from topomask.ops.sample_walks.numba.walkers import ONE, absorb, uniform


@njit(**ALLOCATING)
def _make_scratch(num_candidates, num_entries, num_columns, num_lengths, num_slots, shift):
    """Memory for one row at a time."""
    candidates = Candidates(
        np.empty(num_candidates, np.uint64), np.empty(num_candidates), np.empty(num_candidates, np.int64),
        np.empty(num_candidates, np.int64), np.empty(num_candidates, np.int64), np.empty(num_candidates, np.int64),
        np.empty(num_candidates, np.bool_),
    )  # fmt: skip
    entries = Entries(
        np.empty(num_entries, np.uint64), np.empty(num_entries), np.empty(num_entries, np.int64),
        np.empty(num_entries, np.int64), np.empty(num_lengths + 1, np.int64),
    )  # fmt: skip
    columns = Columns(
        np.empty(num_columns, np.int64), np.empty(num_columns, np.int64), np.empty(num_columns, np.uint64),
        np.empty(num_columns, np.int64), np.empty(num_lengths),
    )  # fmt: skip
    return candidates, entries, columns, Table(np.zeros(num_slots, np.uint64), shift)


def _expand_rows(
    start_block, stop_block, matrix, hubs, settings, tolerance, states, sizes, starts, block_ptr, capacity, bounds,
    unreached, row_ends, block_ends, out,
):  # fmt: skip
    """Expand blocks of rows, each into the part of ``out`` from ``capacity`` times its first row on.

    ``hubs`` is None if the largest entries are kept; Numba does not compile the branches of the other way to prune.
    """
    for block in range(start_block, stop_block):
        candidates, entries, columns, table = _make_scratch(*sizes)
        ids, base = matrix.ids, ONE
        origin = block_ptr[block] * capacity
        pair, entry = origin, origin
        for row in range(block_ptr[block], block_ptr[block + 1]):
            start = starts[row]
            start_id, tie = ids[start], absorb(states.tie, ids[start])
            entries.node[0], entries.value[0], entries.ptr[0], entries.ptr[1] = start, 1.0, 0, 1
            first, end = 0, 1
            if hubs is None:
                bounds[row, 0] = 0.0
            for step in range(1, settings.max_length + 1):
                if hubs is None:
                    count = spread(matrix, entries, first, end, table, base, candidates)
                else:
                    state = absorb(states.hub, start_id)
                    count = spread_some(matrix, hubs, state, step, entries, first, end, table, base, candidates)
                base += count
                left = drop_zeros(candidates, np.int64(count))
                if hubs is None:
                    stop, lost = keep_largest(matrix, settings, tie, candidates, left, entries, first, end)
                    bounds[row, step] = bounds[row, step - 1] * matrix.growth[start] + lost
                else:
                    draw = uniform(absorb(absorb(absorb(states.prune, start_id), 0), step))
                    stop = thin(matrix, settings.width, tie, draw, candidates, left, entries, end)
                first, end = end, stop
                entries.ptr[step + 1] = end
            count = find_columns(settings, entries, table, base, candidates, columns)
            base += count
            left = np.int64(count)
            if hubs is None:
                unreached[row] = cut_columns(
                    settings, tolerance, tie, ids, candidates, left, entries, columns, bounds[row]
                )
            else:
                for k in range(left):
                    candidates.chosen[k] = True
            pair, entry = write_row(settings, entries, candidates, left, columns, pair, entry, origin, out)
            row_ends[row] = pair
        block_ends[block, 0], block_ends[block, 1] = pair, entry


expand_kernel = BlockKernel(_expand_rows, allocates=True)
