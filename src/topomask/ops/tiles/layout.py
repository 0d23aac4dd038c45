"""Which queries share a tile, and which keys it visits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from topomask.ops.backend import Kernel, arrays
from topomask.ops.tiles.vectors import KEYS, LANES

# Queries of a tile that must see a key for it to be taken with all lanes.
MIN_LANES = 2
# Neighbours of a node that are looked at when nodes are put into groups.
_NEIGHBOURS = 64


class Layout(NamedTuple):
    """Tiles of a pattern."""

    order: Tensor  # [tiles * 16], int32, the row of every lane; what is over in the last tile repeats a row
    starts: Tensor  # [tiles + 1], where the keys of a tile begin
    ends: Tensor  # [tiles], where keys that are taken with all lanes end, a multiple of 8 after the start
    keys: Tensor  # [starts[-1] + 8], int32
    rest_ptr: Tensor  # [tiles * 16 + 1], where the other pairs of every lane begin
    rest: Tensor  # [others], int32, key of such a pair, counted from the start of the tile
    num_rows: int
    num_pairs: int
    most_keys: int  # of a tile
    most_inner: int  # columns of walk features that a tile sees at most; 0 for entries
    # For a number of threads, where each adds gradients of keys, and which keys they share; filled when first needed.
    shares: dict[int, tuple[np.ndarray, Tensor]]


def _order_nodes(row_ptr, columns, order):
    """Put nodes that are close in a graph next to each other, in groups of 16 that are grown from a seed.

    The neighbour with the most edges into the group comes next, so groups are round rather than long.
    """
    num_nodes = row_ptr.shape[0] - 1
    taken, links = np.zeros(num_nodes, np.bool_), np.zeros(num_nodes, np.int32)
    frontier = np.empty(LANES * _NEIGHBOURS, np.int32)
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


@njit(error_model="numpy")
def _collect(tile, order, num_rows, row_ptr, columns, column_ptr, rows, bits, found, inner_bits, inner):
    """The keys that a tile sees, with a bit for every lane that does; through features if there are keys by column."""
    count, inner_count = 0, 0
    through = column_ptr.shape[0] > 0
    # The two loops spell out the same steps: a function that takes arrays would cost more than it does.
    for r in range(min(LANES, num_rows - tile * LANES)):
        i = order[tile * LANES + r]
        for p in range(row_ptr[i], row_ptr[i + 1]):
            column = columns[p]
            if through:
                if inner_bits[column] == 0:
                    inner[inner_count] = column
                    inner_count += 1
                inner_bits[column] |= np.int32(1 << r)
            else:
                if bits[column] == 0:
                    found[count] = column
                    count += 1
                bits[column] |= np.int32(1 << r)
    for k in range(inner_count):
        column = inner[k]
        lanes = inner_bits[column]
        inner_bits[column] = 0
        for p in range(column_ptr[column], column_ptr[column + 1]):
            key = rows[p]
            if bits[key] == 0:
                found[count] = key
                count += 1
            bits[key] |= lanes
    return count, inner_count


@njit(error_model="numpy")
def _bit_count(bits):
    count = 0
    while bits:
        bits &= bits - 1
        count += 1
    return count


def _count_tiles(
    row_ptr, columns, column_ptr, rows, order, num_keys, num_inner, min_lanes, blocks, sizes, others, inners, pairs
):
    """Keys taken with all lanes, other keys, pairs of these, inner columns and pairs of every tile."""
    num_rows = row_ptr.shape[0] - 1
    for block in prange(blocks.shape[0] - 1):
        bits, found = np.zeros(num_keys, np.int32), np.empty(num_keys, np.int32)
        inner_bits, inner = np.zeros(num_inner, np.int32), np.empty(num_inner, np.int32)
        for tile in range(blocks[block], blocks[block + 1]):
            count, inners[tile] = _collect(
                tile, order, num_rows, row_ptr, columns, column_ptr, rows, bits, found, inner_bits, inner
            )
            full, alone, total = 0, 0, 0
            for k in range(count):
                lanes = _bit_count(bits[found[k]])
                total += lanes
                if lanes >= min_lanes:
                    full += 1
                else:
                    alone += lanes
                bits[found[k]] = 0
            sizes[tile, 0], sizes[tile, 1] = (full + KEYS - 1) // KEYS * KEYS, count - full
            others[tile], pairs[tile] = alone, total


def _fill_tiles(
    row_ptr, columns, column_ptr, rows, order, num_keys, num_inner, min_lanes, blocks, starts, ends, rest_starts, keys,
    rest_ptr, rest, slots,
):  # fmt: skip
    """Keys of every tile, pairs that are taken alone, and the slots of the entries of a pattern."""
    num_rows = row_ptr.shape[0] - 1
    for block in prange(blocks.shape[0] - 1):
        bits, found = np.zeros(num_keys, np.int32), np.empty(num_keys, np.int32)
        where = np.empty(num_keys, np.int32)
        inner_bits, inner = np.zeros(num_inner, np.int32), np.empty(num_inner, np.int32)
        for tile in range(blocks[block], blocks[block + 1]):
            count, _ = _collect(
                tile, order, num_rows, row_ptr, columns, column_ptr, rows, bits, found, inner_bits, inner
            )
            found[:count].sort()
            place, alone = starts[tile], ends[tile]
            for k in range(count):
                if _bit_count(bits[found[k]]) >= min_lanes:
                    where[found[k]], keys[place] = place - starts[tile], found[k]
                    place += 1
                else:
                    where[found[k]], keys[alone] = alone - starts[tile], found[k]
                    alone += 1
            for k in range(place, ends[tile]):
                keys[k] = keys[starts[tile]]
            p = rest_starts[tile]
            for r in range(LANES):
                rest_ptr[tile * LANES + r] = p
                for k in range(ends[tile], starts[tile + 1]):
                    if bits[keys[k]] >> r & 1:
                        rest[p] = k - starts[tile]
                        p += 1
            if slots.shape[0] > 0:
                for r in range(min(LANES, num_rows - tile * LANES)):
                    i = order[tile * LANES + r]
                    for p in range(row_ptr[i], row_ptr[i + 1]):
                        slots[p] = where[columns[p]] * LANES + r
            for k in range(count):
                bits[found[k]] = 0


_order_kernel = Kernel(_order_nodes, threads=False)
_count_kernel, _fill_kernel = Kernel(_count_tiles), Kernel(_fill_tiles)


def order_nodes(row_ptr: Tensor, columns: Tensor) -> Tensor:
    """The nodes of a graph in groups of 16 that are close to each other, [N], int32."""
    order = np.empty(len(row_ptr) - 1, np.int32)
    _order_kernel(*arrays(row_ptr, columns), order)
    return torch.from_numpy(order)


def make_layout(
    row_ptr: Tensor,
    columns: Tensor,
    num_keys: int,
    column_ptr: Tensor | None = None,
    rows: Tensor | None = None,
    order: Tensor | None = None,
) -> tuple[Layout, Tensor]:
    """Lay out a pattern [R, N]; or, given features of keys by column, the product of features [R, C] with [N, C].

    Args:
        row_ptr: Where the columns of every row begin, [R + 1].
        columns: Columns of the pattern, or of the features of queries.
        num_keys: Number of keys N.
        column_ptr: Where the keys that see a column begin, [C + 1].
        rows: Keys, by column.
        order: Rows in an order in which neighbours have much in common, [R]. Default: as they come.

    Returns:
        The layout, and for a pattern the slot of every entry in its tile.
    """
    num_rows = len(row_ptr) - 1
    num_tiles = -(-num_rows // LANES)
    rows_in_order = np.arange(num_rows, dtype=np.int32) if order is None else order.to(torch.int32).numpy()
    places = np.minimum(np.arange(num_tiles * LANES), num_rows - 1)
    lanes = np.ascontiguousarray(rows_in_order[places])
    pattern = arrays(row_ptr, columns)
    by_column: list[np.ndarray] = [np.zeros(0, np.int64), np.zeros(0, np.int32)]
    if column_ptr is not None and rows is not None:
        by_column = arrays(column_ptr, rows)
    inputs = (*pattern, *by_column, lanes, num_keys, len(by_column[0]), MIN_LANES)
    blocks = np.linspace(0, num_tiles, max(1, torch.get_num_threads()) + 1).astype(np.int64)
    sizes, others = np.zeros((num_tiles, 2), np.int64), np.zeros(num_tiles, np.int64)
    inners, pairs = np.zeros(num_tiles, np.int64), np.zeros(num_tiles, np.int64)
    _count_kernel(*inputs, blocks, sizes, others, inners, pairs)
    starts = np.concatenate([[0], np.cumsum(sizes.sum(axis=1))])
    ends, rest_starts = starts[:-1] + sizes[:, 0], np.concatenate([[0], np.cumsum(others)])
    keys, rest = np.zeros(starts[-1] + KEYS, np.int32), np.zeros(rest_starts[-1], np.int32)
    rest_ptr = np.full(num_tiles * LANES + 1, rest_starts[-1], np.int64)
    slots = np.zeros(len(columns) if column_ptr is None else 0, np.int32)
    _fill_kernel(*inputs, blocks, starts, ends, rest_starts, keys, rest_ptr, rest, slots)
    layout = Layout(
        order=torch.from_numpy(lanes),
        starts=torch.from_numpy(starts),
        ends=torch.from_numpy(ends),
        keys=torch.from_numpy(keys),
        rest_ptr=torch.from_numpy(rest_ptr),
        rest=torch.from_numpy(rest),
        num_rows=num_rows,
        num_pairs=int(pairs.sum()),
        most_keys=int(np.diff(starts).max(initial=0)),
        most_inner=int(inners.max(initial=0)),
        shares={},
    )
    return layout, torch.from_numpy(slots)
