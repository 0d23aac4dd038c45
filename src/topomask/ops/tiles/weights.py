"""The weights of a tile, [keys, 16], from what they are made of, and the way back for gradients."""

from __future__ import annotations

from numba import njit, prange

from topomask.ops.backend import Kernel
from topomask.ops.tiles import vectors
from topomask.ops.tiles.vectors import LANES

# Weights that were packed before, entries of a pattern, or products of walk features.
PACKED, ENTRIES, FEATURES = 0, 1, 2


@njit(error_model="numpy")
def _fill_entries(tile, order, num_rows, row_ptr, slots, values, weights):
    for r in range(min(LANES, num_rows - tile * LANES)):
        i = order[tile * LANES + r]
        for p in range(row_ptr[i], row_ptr[i + 1]):
            weights[slots[p]] = values[p]


@njit(error_model="numpy")
def _find_inner(tile, order, num_rows, row_ptr, columns, values, inner_where, inner, features):
    """Features of a tile by column, [columns, 16]; ``inner_where`` is -1 before, and is cleaned by the caller."""
    count = 0
    for r in range(min(LANES, num_rows - tile * LANES)):
        i = order[tile * LANES + r]
        for p in range(row_ptr[i], row_ptr[i + 1]):
            c = columns[p]
            k = inner_where[c]
            if k < 0:
                k = inner_where[c] = count
                inner[count] = c
                features[k * LANES : (k + 1) * LANES] = 0
                count += 1
            features[k * LANES + r] = values[p]
    return count


@njit(error_model="numpy")
def _fill_features(tile, layout, features, maps, inner_lanes, sizes_too, weights, sizes):
    """Weights of a tile as the product of walk features."""
    order, starts, num_rows, keys = layout[0], layout[1], layout[6], layout[3]
    row_ptr, columns, query, query_sizes, column_ptr, rows, key, key_sizes = features
    inner_where, inner, where = maps
    for k in range(starts[tile + 1] - 1, starts[tile] - 1, -1):
        where[keys[k]] = k - starts[tile]
    for part in range(2 if sizes_too else 1):
        own, other, out = (query, key, weights) if part == 0 else (query_sizes, key_sizes, sizes)
        count = _find_inner(tile, order, num_rows, row_ptr, columns, own, inner_where, inner, inner_lanes)
        feature, row, value = inner_lanes.ctypes.data, rows.ctypes.data, other.ctypes.data
        place, to = where.ctypes.data, out.ctypes.data
        for k in range(count):
            c = inner[k]
            inner_where[c] = -1
            vectors.spread_column(feature + 4 * LANES * k, row, value, column_ptr[c], column_ptr[c + 1], place, to)


@njit(error_model="numpy")
def spread_features(tile, layout, features, maps, inner_lanes, inner_grads, sizes_too, weights, sizes, grads, block):
    """Gradients of walk features from those of the weights of a tile, the derivative of `_fill_features`."""
    order, starts, num_rows, keys = layout[0], layout[1], layout[6], layout[3]
    row_ptr, columns, query, query_sizes, column_ptr, rows, key, key_sizes = features
    grad_query, grad_query_sizes, parts_key, parts_key_sizes = grads
    inner_where, inner, where = maps
    for k in range(starts[tile + 1] - 1, starts[tile] - 1, -1):
        where[keys[k]] = k - starts[tile]
    for part in range(2 if sizes_too else 1):
        own, other, given = (query, key, weights) if part == 0 else (query_sizes, key_sizes, sizes)
        grad_own, parts = (grad_query, parts_key) if part == 0 else (grad_query_sizes, parts_key_sizes)
        count = _find_inner(tile, order, num_rows, row_ptr, columns, own, inner_where, inner, inner_lanes)
        feature, row, value = inner_lanes.ctypes.data, rows.ctypes.data, other.ctypes.data
        place, grad, to = where.ctypes.data, given.ctypes.data, inner_grads.ctypes.data
        to_key = parts.ctypes.data + 4 * block * parts.shape[1]
        for k in range(count):
            first, last = column_ptr[inner[k]], column_ptr[inner[k] + 1]
            at = 4 * LANES * k
            vectors.collect_column(feature + at, row, value, first, last, place, grad, to + at, to_key)
        for r in range(min(LANES, num_rows - tile * LANES)):
            i = order[tile * LANES + r]
            for p in range(row_ptr[i], row_ptr[i + 1]):
                grad_own[p] = inner_grads[inner_where[columns[p]] * LANES + r]
        for k in range(count):
            inner_where[inner[k]] = -1


@njit(error_model="numpy")
def fill(first, end, source, layout, entries, features, maps, inner_lanes, own, weights, sizes):
    """Weights and sizes [keys, 16] of some tiles, one after the other, from entries or features."""
    starts = layout[1]
    count = (starts[end] - starts[first]) * LANES
    weights[:count] = 0
    if own:
        sizes[:count] = 0
    for tile in range(first, end):
        at = (starts[tile] - starts[first]) * LANES
        if source == ENTRIES:
            row_ptr, slots, values, entry_sizes = entries
            _fill_entries(tile, layout[0], layout[6], row_ptr, slots, values, weights[at:])
            if own:
                _fill_entries(tile, layout[0], layout[6], row_ptr, slots, entry_sizes, sizes[at:])
        else:
            _fill_features(tile, layout, features, maps, inner_lanes, own, weights[at:], sizes[at:])


@njit(error_model="numpy")
def spread_entries(tile, order, num_rows, row_ptr, slots, grads, out):
    """Gradients of entries from those of the weights of a tile."""
    for r in range(min(LANES, num_rows - tile * LANES)):
        i = order[tile * LANES + r]
        for p in range(row_ptr[i], row_ptr[i + 1]):
            out[p] = grads[slots[p]]


def _pack(layout, features, own, blocks, scratch, maps, weights, sizes):
    """Packed weights of all tiles from walk features."""
    starts = layout[1]
    for block in prange(blocks.shape[0] - 1):
        own_maps = (maps[0][block], maps[1][block], maps[2][block])
        for tile in range(blocks[block], blocks[block + 1]):
            first, last = starts[tile] * LANES, starts[tile + 1] * LANES
            _fill_features(
                tile, layout, features, own_maps, scratch[block], own, weights[first:last], sizes[first:last]
            )


pack_kernel = Kernel(_pack)
