"""Random walks, compiled: results have the same bits as those of the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.sample_walks import HALT, MOVE, GraphTensors, Loads, WalkSettings, length_dtype, random
from topomask.ops.sample_walks.numba import loads, walkers
from topomask.ops.sample_walks.numba.loads import LoadArrays, Records, Scales, Tables

_COUPLINGS = {"iid": walkers.IID, "antithetic": walkers.ANTITHETIC, "repelling": walkers.REPELLING}
# The most entries that a chunk of rows may have; bounds the temporary memory.
_ENTRIES_PER_CHUNK = 1 << 23
# The most nodes in the tables of all threads together; bounds memory on large graphs with many threads.
_TABLE_SIZE = 1 << 28
_ROWS_PER_BLOCK = 32


def sample_walks(
    graph: GraphTensors, start_nodes: Tensor, settings: WalkSettings, heads: Sequence[int], dtype: torch.dtype
) -> Loads:
    """Sample walks from ``start_nodes`` [R] on ``graph`` for some heads, one after the other."""
    num_nodes, capacity = len(graph.row_ptr) - 1, _capacity(settings)
    max_rows = max(1, min(len(start_nodes), _ENTRIES_PER_CHUNK // capacity))
    num_rows = len(heads) * len(start_nodes)
    kinds = segments.index_type(num_nodes), length_dtype(settings.max_length), dtype
    output = Output(num_rows, num_rows * capacity, *(torch.empty(0, dtype=kind).numpy().dtype for kind in kinds))
    num_blocks = len(_blocks(max_rows, num_nodes)) - 1
    # Zeros are paged in on use: a few rows of a large graph touch little of the memory. Kernels reset it to zero.
    tables = Tables(
        np.zeros((num_blocks, num_nodes), np.uint32),
        *(np.zeros((num_blocks, (num_nodes >> bits) + 1), np.uint64) for bits in (6, 12, 18)),
    )
    parts = LoadArrays(*(np.empty(max_rows * capacity, array.dtype) for array in output.arrays))
    parts = parts._replace(entry_ptr=np.empty(max_rows * capacity, np.uint32))
    is_sorted = settings.normalization == "none" or graph.signs is not None
    scratch = _Scratch(
        *walkers.make_walkers(num_blocks, settings.num_walks, is_sorted),
        tables,
        loads.make_records(num_blocks, capacity),
    )
    for head in heads:
        for chunk in start_nodes.split(max_rows):
            _sample_chunk(graph, chunk, settings, head, scratch, parts, output)
    return output.loads()


class _Scratch(NamedTuple):
    """Memory of every block, [blocks, ...]. There are walkers of one kind."""

    walkers: walkers.Walkers | None
    sorted_walkers: walkers.SortedWalkers | None
    tables: Tables
    records: Records


class Output:
    """Loads of all rows, appended chunk by chunk.

    Their number is estimated from the first chunk, so that chunks are copied only once, to their final place.
    """

    def __init__(self, num_rows: int, max_entries: int, column_type: Any, length_type: Any, load_type: Any) -> None:
        pointer_type = np.int32 if max_entries < 2**31 else np.int64
        self.row_ptr = np.zeros(num_rows + 1, np.int64)
        self.arrays = LoadArrays(*(np.empty(0, kind) for kind in (column_type, pointer_type, length_type, load_type)))
        self.num_rows = self.num_pairs = self.num_entries = 0

    def _sizes(self) -> tuple[int, ...]:
        return self.num_pairs, self.num_pairs + 1, self.num_entries, self.num_entries

    def reserve(self, num_rows: int, num_pairs: int, num_entries: int) -> None:
        """Allocate memory for more rows, pairs and entries."""
        filled = self.num_rows > 0
        self.num_rows, self.num_pairs = self.num_rows + num_rows, self.num_pairs + num_pairs
        self.num_entries += num_entries
        left = (len(self.row_ptr) - 1) / max(1, self.num_rows)
        for field, array, size in zip(LoadArrays._fields, self.arrays, self._sizes(), strict=True):
            if size > len(array):
                length = size if left <= 1.0 else int(1.05 * left * size)
                if filled:
                    array.resize(length, refcheck=False)
                else:
                    self.arrays = self.arrays._replace(**{field: np.empty(length, array.dtype)})

    def append(
        self, block_ptr: np.ndarray, capacity: int, row_ends: np.ndarray, block_ends: np.ndarray, parts: LoadArrays
    ) -> None:
        """Copy the rows of a chunk, whose blocks have left them in ``parts``."""
        first_row, first_pair, first_entry = self.num_rows, self.num_pairs, self.num_entries
        num_pairs, num_entries = (block_ends - block_ptr[:-1, None] * capacity).T
        self.reserve(len(row_ends), int(num_pairs.sum()), int(num_entries.sum()))
        loads.compress_kernel(
            len(block_ptr) - 1,
            block_ptr,
            capacity,
            np.cumsum(np.append(first_pair, num_pairs)),
            np.cumsum(np.append(first_entry, num_entries)),
            row_ends,
            parts,
            self.row_ptr[first_row : self.num_rows + 1],
            self.arrays,
        )

    def loads(self) -> Loads:
        """Return everything that was written, and free unused memory."""
        for array, size in zip(self.arrays, self._sizes(), strict=True):
            array.resize(size, refcheck=False)
        self.arrays.entry_ptr[-1] = self.num_entries
        return Loads(*(torch.from_numpy(array) for array in (self.row_ptr, *self.arrays)))


def _sample_chunk(
    graph: GraphTensors,
    start_nodes: Tensor,
    settings: WalkSettings,
    head: int,
    scratch: _Scratch,
    parts: LoadArrays,
    output: Output,
) -> None:
    num_rows, capacity = len(start_nodes), _capacity(settings)
    block_ptr = _blocks(num_rows, len(graph.row_ptr) - 1)
    row_ends, block_ends = np.empty(num_rows, np.int64), np.empty((len(block_ptr) - 1, 2), np.int64)
    by_degree, sym = settings.normalization == "none", settings.normalization == "sym"
    scales = Scales(
        graph.degrees.sqrt().numpy() if sym else np.zeros(0),
        np.array([settings.divisor(length) for length in range(settings.max_length + 1)]),
    )
    loads.sample_kernel(
        len(block_ptr) - 1,
        _graph(graph, None if graph.signs is None else graph.signs.numpy()),
        _settings(settings, by_degree),
        scratch.walkers,
        scratch.sorted_walkers,
        _states(settings, head),
        scales,
        start_nodes.numpy().view(np.uint64),
        block_ptr,
        capacity,
        scratch.tables,
        scratch.records,
        row_ends,
        block_ends,
        parts,
    )
    output.append(block_ptr, capacity, row_ends, block_ends, parts)


def random_walks(graph: GraphTensors, start_nodes: Tensor, settings: WalkSettings, head: int) -> Tensor:
    """Return the nodes that every walker visits, [R, W, L + 1]; -1 once it has ended."""
    num_rows = len(start_nodes)
    out = np.empty((num_rows, settings.num_walks, settings.max_length + 1), np.int64)
    block_ptr = _blocks(num_rows, 0)
    walkers.follow_kernel(
        len(block_ptr) - 1,
        _graph(graph),
        _settings(settings),
        _states(settings, head),
        start_nodes.numpy().view(np.uint64),
        block_ptr,
        *walkers.make_walkers(len(block_ptr) - 1, settings.num_walks, settings.coupling == "repelling"),
        out,
    )
    return torch.from_numpy(out)


def _capacity(settings: WalkSettings) -> int:
    """Return the largest number of entries of a row."""
    return settings.num_walks * settings.max_length + 1


def _blocks(num_rows: int, num_nodes: int) -> np.ndarray:
    """Return the rows where the blocks of all threads begin, [blocks + 1]."""
    count = min(-(-num_rows // _ROWS_PER_BLOCK), _TABLE_SIZE // max(num_nodes, 1), torch.get_num_threads())
    return np.linspace(0, num_rows, max(count, 1) + 1).astype(np.int64)


def _states(settings: WalkSettings, head: int) -> walkers.HashStates:
    states = [int(random.key(settings.seed, head, settings.ensemble, purpose)) for purpose in (MOVE, HALT)]
    return walkers.HashStates(*(np.uint64(state & ((1 << 64) - 1)) for state in states))


def _settings(settings: WalkSettings, weight_by_degree: bool = False) -> walkers.Settings:
    return walkers.Settings(
        settings.num_walks,
        settings.max_length,
        settings.halt_prob,
        _COUPLINGS[settings.coupling],
        weight_by_degree,
    )


def _graph(graph: GraphTensors, signs: np.ndarray | None = None) -> walkers.Graph:
    """Return the graph with unsigned nodes; without signs for plain walks, which have no weights."""
    columns = graph.columns.numpy()
    return walkers.Graph(
        graph.row_ptr.numpy().view(np.uint64),
        columns.view(np.dtype(f"u{columns.itemsize}")),
        graph.cumulative.numpy(),
        np.zeros(0) if signs is None else signs,
        graph.degrees.numpy(),
        graph.ids.numpy(),
        graph.unit_weights,
    )
