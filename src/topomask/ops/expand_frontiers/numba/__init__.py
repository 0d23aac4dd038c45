"""Frontiers, compiled: the same bits as the reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.expand_frontiers import HUB, PRUNE, TIE, Edges, Frontiers, FrontierSettings
from topomask.ops.expand_frontiers.hubs import cut_hubs
from topomask.ops.expand_frontiers.numba.frontiers import Hubs, Matrix, Settings, States
from topomask.ops.expand_frontiers.numba.hubs import prepare_hubs
from topomask.ops.expand_frontiers.numba.rows import expand_kernel
from topomask.ops.sample_walks import length_dtype, random
from topomask.ops.sample_walks.numba import Output
from topomask.ops.sample_walks.numba.loads import LoadArrays

# Entries that a chunk of rows may leave at most; bounds the memory that does not end up in the result.
_ENTRIES_PER_CHUNK = 1 << 23
_ROWS_PER_BLOCK = 32


def expand_frontiers(edges: Edges, start_nodes: Tensor, settings: FrontierSettings, heads: Sequence[int]) -> Frontiers:
    """Expand and prune the rows of ``start_nodes`` [R] for some heads, one after the other."""
    matrix, hubs = _matrix(edges, settings)
    num_nodes, num_rows = len(edges.ids), len(heads) * len(start_nodes)
    capacity = _capacity(settings)
    max_rows = max(1, min(len(start_nodes), _ENTRIES_PER_CHUNK // capacity))
    kinds = segments.index_type(num_nodes), length_dtype(settings.max_length), torch.float32
    output = Output(
        num_rows, num_rows * settings.max_loads, *(torch.empty(0, dtype=kind).numpy().dtype for kind in kinds)
    )
    parts = LoadArrays(*(np.empty(max_rows * capacity, array.dtype) for array in output.arrays))
    parts = parts._replace(entry_ptr=np.empty(max_rows * capacity, np.uint32))
    is_certified = settings.prune == "largest"
    bounds = np.empty((num_rows if is_certified else 1, settings.max_length + 1))
    unreached = np.zeros(num_rows if is_certified else 1, dtype=bool)
    row = 0
    for head in heads:
        for chunk in start_nodes.split(max_rows):
            own = slice(row, row + len(chunk)) if is_certified else slice(None)
            row += len(chunk)
            block_ptr = _blocks(len(chunk))
            row_ends, block_ends = np.empty(len(chunk), np.int64), np.empty((len(block_ptr) - 1, 2), np.int64)
            expand_kernel(
                len(block_ptr) - 1,
                matrix,
                hubs,
                _settings(settings),
                settings.tolerance,
                _states(settings, head),
                _sizes(matrix, settings),
                chunk.numpy().view(np.uint64),
                block_ptr,
                capacity,
                bounds[own],
                unreached[own],
                row_ends,
                block_ends,
                parts,
            )
            output.append(block_ptr, capacity, row_ends, block_ends, parts)
    loads = output.loads()
    if not is_certified:
        return Frontiers(loads, None, None)
    return Frontiers(loads, torch.from_numpy(bounds), torch.from_numpy(unreached))


def _capacity(settings: FrontierSettings) -> int:
    """Entries of a row at most."""
    if settings.max_entries is None:
        return settings.max_loads
    return min(settings.max_loads, settings.max_entries * (settings.max_length + 1))


def _blocks(num_rows: int) -> np.ndarray:
    """Rows where the blocks of all threads begin, [blocks + 1]."""
    count = min(-(-num_rows // _ROWS_PER_BLOCK), torch.get_num_threads())
    return np.linspace(0, num_rows, max(count, 1) + 1).astype(np.int64)


def _matrix(edges: Edges, settings: FrontierSettings) -> tuple[Matrix, Hubs | None]:
    """The matrix with unsigned nodes, and its hubs unless they are cut off."""
    if settings.prune == "largest":
        row_ptr, columns, values, rest = cut_hubs(edges, settings.width, settings.euclidean)
        hubs = None
    else:
        row_ptr, columns, values = edges.row_ptr.numpy(), edges.columns.numpy(), edges.values.numpy()
        rest, hubs = np.zeros(0), prepare_hubs(edges, settings.width)
    columns = columns.view(np.dtype(f"u{columns.itemsize}"))
    return Matrix(row_ptr.view(np.uint64), columns, values, rest, edges.growth.numpy(), edges.ids.numpy()), hubs


def _sizes(matrix: Matrix, settings: FrontierSettings) -> tuple[int, int, int, int, int, np.uint64]:
    """How much memory a row needs: candidates, entries, columns, lengths and slots of the table, and its shift."""
    num_nodes = len(matrix.ids)
    degree = int(np.diff(matrix.row_ptr.view(np.int64)).max(initial=0))
    num_columns = min(settings.max_loads, num_nodes)
    # A hub reaches no more nodes than a frontier has entries.
    num_candidates = max(1, num_columns, min(settings.width * min(settings.width, degree), num_nodes))
    bits = (2 * num_candidates - 1).bit_length()
    sizes = num_candidates, settings.max_loads, num_columns, settings.max_length + 1
    return *sizes, 1 << bits, np.uint64(64 - bits)


def _settings(settings: FrontierSettings) -> Settings:
    return Settings(
        settings.width,
        settings.max_length,
        0 if settings.max_entries is None else settings.max_entries,
        settings.euclidean,
        np.array(settings.length_weights),
    )


def _states(settings: FrontierSettings, head: int) -> States:
    words = [(settings.seed, head, settings.ensemble, purpose) for purpose in (PRUNE, HUB)]
    keys = [int(random.key(*each)) for each in (*words, (0, 0, 0, TIE))]
    return States(*(np.uint64(key & ((1 << 64) - 1)) for key in keys))
