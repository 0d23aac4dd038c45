"""Which queries share a tile, and which keys it visits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor

from topomask.ops import segments
from topomask.ops.backend import EXACT, BlockKernel, Kernel, arrays
from topomask.ops.llvm import KEYS
from topomask.ops.pair_attention import LANES, MIN_LANES
from topomask.ops.sorting import sort
from topomask.ops.sparse_product import check_rows
from topomask.ops.tiles.records import Tiles

# The most neighbours of a node that are considered when nodes are grouped.
_NEIGHBOURS = 64


class Layout(NamedTuple):
    """Tiles of a pattern, and how much memory they need."""

    tiles: Tiles
    slots: np.ndarray  # [P], int32, the place of every entry of a pattern in its tile; empty for features
    num_pairs: int
    max_keys: int  # of a tile
    max_columns: int  # of features that a tile sees; 0 for entries
    # By number of blocks: where each block adds gradients of keys, and which keys blocks share; filled on first use.
    shares: dict[int, tuple[np.ndarray, np.ndarray]]


class _Structure(NamedTuple):
    """A pattern [R, N] by rows; or features of queries [R, C] by rows, and of keys [N, C] by columns."""

    row_ptr: np.ndarray
    columns: np.ndarray
    column_ptr: np.ndarray  # empty for a pattern
    rows: np.ndarray


class _Counts(NamedTuple):
    """Counts for every tile."""

    together: np.ndarray  # keys that are processed in all lanes, rounded up to a multiple of 8
    alone: np.ndarray  # other keys
    rest: np.ndarray  # pairs with these keys
    columns: np.ndarray  # of features
    pairs: np.ndarray


class _Seen(NamedTuple):
    """Tables of what a tile sees, with one bit per lane that sees it, for every block of tiles; cleared after use."""

    key_bits: np.ndarray  # [blocks, N]
    keys: np.ndarray  # [blocks, N], those that were seen
    column_bits: np.ndarray  # [blocks, C]
    columns: np.ndarray  # [blocks, C]


def _order_nodes(row_ptr, columns, taken, links, frontier, order):
    """Put nodes that are close in a graph next to each other, in groups of 16 that grow from a seed.

    The neighbour with the most edges into the group is added next, so groups are compact rather than elongated.
    ``taken`` and ``links`` are all zero at the start; ``frontier`` has room for the neighbours of a group.
    """
    num_nodes = row_ptr.shape[0] - 1
    placed, seed, size = 0, 0, 0
    while placed < num_nodes:
        if placed % LANES == 0 or size == 0:
            # A new group, or one that has no neighbours left.
            for k in range(size):
                links[frontier[k]] = 0
            size = 0
            while taken[seed]:
                seed += 1
            node = seed
        else:
            best = 0
            for k in range(1, size):
                if links[frontier[k]] > links[frontier[best]]:
                    best = k
            node = frontier[best]
            links[node] = 0
            for k in range(best, size - 1):
                frontier[k] = frontier[k + 1]
            size -= 1
        taken[node] = True
        order[placed] = node
        placed += 1
        for p in range(row_ptr[node], min(row_ptr[node + 1], row_ptr[node] + _NEIGHBOURS)):
            j = columns[p]
            if not taken[j]:
                if links[j] == 0:
                    frontier[size] = j
                    size += 1
                links[j] += 1


@njit(**EXACT)
def _collect(tile, order, structure, key_bits, keys, column_bits, seen_columns):
    """Collect the keys that a tile sees, through features if there are any; returns the numbers of keys and columns."""
    row_ptr, columns, column_ptr, rows = structure
    num_rows, count, num_columns = row_ptr.shape[0] - 1, 0, 0
    through_features = column_ptr.shape[0] > 0
    # The loops repeat the same steps: calling a function with arrays would cost more than the steps themselves.
    for r in range(min(LANES, num_rows - tile * LANES)):
        i = order[tile * LANES + r]
        for p in range(row_ptr[i], row_ptr[i + 1]):
            column = columns[p]
            if through_features:
                if column_bits[column] == 0:
                    seen_columns[num_columns] = column
                    num_columns += 1
                column_bits[column] |= np.int32(1 << r)
            else:
                if key_bits[column] == 0:
                    keys[count] = column
                    count += 1
                key_bits[column] |= np.int32(1 << r)
    for k in range(num_columns):
        column = seen_columns[k]
        lanes = column_bits[column]
        column_bits[column] = 0
        for p in range(column_ptr[column], column_ptr[column + 1]):
            key = rows[p]
            if key_bits[key] == 0:
                keys[count] = key
                count += 1
            key_bits[key] |= lanes
    return count, num_columns


@njit(**EXACT)
def _bit_count(bits):
    count = 0
    while bits:
        bits &= bits - 1
        count += 1
    return count


def _count_tiles(start_block, stop_block, structure, order, min_lanes, blocks, seen, counts):
    """Count what every tile sees."""
    for block in range(start_block, stop_block):
        key_bits, keys = seen.key_bits[block], seen.keys[block]
        column_bits, columns = seen.column_bits[block], seen.columns[block]
        for tile in range(blocks[block], blocks[block + 1]):
            num_keys, counts.columns[tile] = _collect(tile, order, structure, key_bits, keys, column_bits, columns)
            together, rest, pairs = 0, 0, 0
            for k in range(num_keys):
                lanes = _bit_count(key_bits[keys[k]])
                pairs += lanes
                if lanes >= min_lanes:
                    together += 1
                else:
                    rest += lanes
                key_bits[keys[k]] = 0
            counts.together[tile] = (together + KEYS - 1) // KEYS * KEYS
            counts.alone[tile], counts.rest[tile], counts.pairs[tile] = num_keys - together, rest, pairs


def _fill_tiles(start_block, stop_block, structure, min_lanes, blocks, seen, all_key_slots, rest_starts, tiles, slots):
    """Write the keys of every tile, pairs that are processed alone, and the slots of the entries of a pattern."""
    for block in range(start_block, stop_block):
        order, starts, ends, keys, rest_ptr, rest, num_rows = tiles
        key_bits, seen_keys, key_slots = seen.key_bits[block], seen.keys[block], all_key_slots[block]
        column_bits, columns = seen.column_bits[block], seen.columns[block]
        for tile in range(blocks[block], blocks[block + 1]):
            num_keys, _ = _collect(tile, order, structure, key_bits, seen_keys, column_bits, columns)
            found = seen_keys[:num_keys]
            sort(found)
            place, alone = starts[tile], ends[tile]
            for key in found:
                if _bit_count(key_bits[key]) >= min_lanes:
                    key_slots[key], keys[place] = place - starts[tile], key
                    place += 1
                else:
                    key_slots[key], keys[alone] = alone - starts[tile], key
                    alone += 1
            for k in range(place, ends[tile]):
                keys[k] = keys[starts[tile]]
            p = rest_starts[tile]
            for r in range(LANES):
                rest_ptr[tile * LANES + r] = p
                for k in range(ends[tile], starts[tile + 1]):
                    if key_bits[keys[k]] >> r & 1:
                        rest[p] = k - starts[tile]
                        p += 1
            if slots.shape[0] > 0:
                for r in range(min(LANES, num_rows - tile * LANES)):
                    i = order[tile * LANES + r]
                    for p in range(structure.row_ptr[i], structure.row_ptr[i + 1]):
                        slots[p] = key_slots[structure.columns[p]] * LANES + r
            for key in found:
                key_bits[key] = 0


_order_kernel = Kernel(_order_nodes)
_count_kernel, _fill_kernel = BlockKernel(_count_tiles), BlockKernel(_fill_tiles)


def order_nodes(row_ptr: Tensor, columns: Tensor) -> Tensor:
    """Return the nodes of a graph in groups of 16 that are close to each other, [N], int32."""
    segments.check_once(check_rows, (row_ptr, columns), len(row_ptr) - 1)
    num_nodes = len(row_ptr) - 1
    taken, links = np.zeros(num_nodes, np.bool_), np.zeros(num_nodes, np.int32)
    order, frontier = np.empty(num_nodes, np.int32), np.empty(LANES * _NEIGHBOURS, np.int32)
    _order_kernel(*arrays(row_ptr, columns), taken, links, frontier, order)
    return torch.from_numpy(order)


def make_layout(
    row_ptr: Tensor,
    columns: Tensor,
    num_keys: int,
    column_ptr: Tensor | None = None,
    rows: Tensor | None = None,
    order: Tensor | None = None,
) -> Layout:
    """Lay out a pattern [R, N]; or, given features of keys by column, the product of features [R, C] with [N, C].

    Args:
        row_ptr: Where the columns of every row begin, [R + 1].
        columns: Columns of the pattern, or of the features of queries.
        num_keys: Number of keys N.
        column_ptr: Where the keys with features in a column begin, [C + 1].
        rows: Keys, by column.
        order: An order of the rows in which neighbours have many keys in common, [R]. Default: as given.
    """
    num_rows = len(row_ptr) - 1
    num_tiles = -(-num_rows // LANES)
    key_ptr, key_rows = np.zeros(0, np.int64), np.zeros(0, np.int32)
    if column_ptr is not None and rows is not None:
        key_ptr, key_rows = arrays(column_ptr, rows)
    query_ptr, query_columns = arrays(row_ptr, columns)
    structure = _Structure(query_ptr, query_columns, key_ptr, key_rows)
    if order is not None:
        segments.check_permutation("order", order, num_rows)
    in_order = np.arange(num_rows, dtype=np.int32) if order is None else order.to(torch.int32).numpy()
    lanes = np.ascontiguousarray(in_order[np.minimum(np.arange(num_tiles * LANES), num_rows - 1)])
    blocks = np.linspace(0, num_tiles, max(1, torch.get_num_threads()) + 1).astype(np.int64)
    counts = _Counts(*np.zeros((5, num_tiles), np.int64))
    of_keys, of_columns = (len(blocks) - 1, num_keys), (len(blocks) - 1, len(key_ptr))
    seen = _Seen(
        np.zeros(of_keys, np.int32),
        np.empty(of_keys, np.int32),
        np.zeros(of_columns, np.int32),
        np.empty(of_columns, np.int32),
    )
    _count_kernel(len(blocks) - 1, structure, lanes, MIN_LANES, blocks, seen, counts)
    starts, rest_starts = (_pointers(sizes) for sizes in (counts.together + counts.alone, counts.rest))
    tiles = Tiles(
        order=lanes,
        starts=starts,
        ends=starts[:-1] + counts.together,
        keys=np.zeros(starts[-1] + KEYS, np.int32),
        rest_ptr=np.full(num_tiles * LANES + 1, rest_starts[-1], np.int64),
        rest=np.zeros(rest_starts[-1], np.int32),
        num_rows=num_rows,
    )
    slots = np.zeros(len(columns) if column_ptr is None else 0, np.int32)
    key_slots = np.empty(of_keys, np.int32)
    _fill_kernel(len(blocks) - 1, structure, MIN_LANES, blocks, seen, key_slots, rest_starts, tiles, slots)
    return Layout(
        tiles,
        slots,
        num_pairs=int(counts.pairs.sum()),
        max_keys=int(np.diff(starts).max(initial=0)),
        max_columns=int(counts.columns.max(initial=0)),
        shares={},
    )


def _pointers(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)])
