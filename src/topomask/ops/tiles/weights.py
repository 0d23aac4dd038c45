"""The weights of a tile, [keys, 16], computed from entries or features, and the gradients of these."""

from __future__ import annotations

from numba import njit

from topomask.ops.backend import EXACT, BlockKernel
from topomask.ops.pair_attention import LANES
from topomask.ops.tiles import vectors
from topomask.ops.tiles.records import Numbering


@njit(inline="always", **EXACT)
def numbering_of(numbering, block):
    """Return the tables of one block, if there are any."""
    if numbering is None:
        return None
    return Numbering(numbering.column_slots[block], numbering.seen_columns[block], numbering.key_slots[block])


@njit(**EXACT)
def _fill_entries(tile, tiles, entries, values, weights):
    for r in range(min(LANES, tiles.num_rows - tile * LANES)):
        i = tiles.order[tile * LANES + r]
        for p in range(entries.row_ptr[i], entries.row_ptr[i + 1]):
            weights[entries.slots[p]] = values[p]


@njit(**EXACT)
def _number_keys(tile, tiles, numbering):
    """Write the place of every key in a tile; keys that fill up a block are repeated, and have their first place."""
    for k in range(tiles.starts[tile + 1] - 1, tiles.starts[tile] - 1, -1):
        numbering.key_slots[tiles.keys[k]] = k - tiles.starts[tile]


@njit(**EXACT)
def _collect_features(tile, tiles, features, values, numbering, lanes):
    """Collect the features of a tile by column, [columns, 16]; returns the number of columns.

    ``column_slots`` must be -1 before, and the caller must reset them.
    """
    slots, count = numbering.column_slots, 0
    for r in range(min(LANES, tiles.num_rows - tile * LANES)):
        i = tiles.order[tile * LANES + r]
        for p in range(features.row_ptr[i], features.row_ptr[i + 1]):
            column = features.columns[p]
            k = slots[column]
            if k < 0:
                k = slots[column] = count
                numbering.seen_columns[count] = column
                lanes[k * LANES : (k + 1) * LANES] = 0
                count += 1
            lanes[k * LANES + r] = values[p]
    return count


@njit(**EXACT)
def _fill_features(tile, tiles, features, query_values, key_values, numbering, lanes, weights):
    """Compute the weights of a tile, which must be 0 before, as products of features; keys must be numbered."""
    count = _collect_features(tile, tiles, features, query_values, numbering, lanes)
    lanes_at, rows_at, values_at = lanes.ctypes.data, features.rows.ctypes.data, key_values.ctypes.data
    slots_at, weights_at = numbering.key_slots.ctypes.data, weights.ctypes.data
    for k in range(count):
        column = numbering.seen_columns[k]
        first, end = features.column_ptr[column], features.column_ptr[column + 1]
        vectors.spread_column(lanes_at + 4 * LANES * k, rows_at, values_at, first, end, slots_at, weights_at)
        numbering.column_slots[column] = -1


@njit(inline="always", **EXACT)
def _fill(first, end, head, tiles, entries, features, separate_magnitudes, numbering, scratch):
    """Compute weights and magnitudes [keys, 16] of some tiles, one after the other, from entries or features."""
    weights, magnitudes, lanes = scratch.weights, scratch.magnitudes, scratch.feature_lanes
    count = (tiles.starts[end] - tiles.starts[first]) * LANES
    weights[:count] = 0
    if separate_magnitudes:
        magnitudes[:count] = 0
    for tile in range(first, end):
        at = (tiles.starts[tile] - tiles.starts[first]) * LANES
        if entries is not None:
            _fill_entries(tile, tiles, entries, entries.values[head], weights[at:])
            if separate_magnitudes:
                _fill_entries(tile, tiles, entries, entries.magnitudes[head], magnitudes[at:])
        if features is not None:
            _number_keys(tile, tiles, numbering)
            query, key = features.query_values[head], features.key_values[head]
            _fill_features(tile, tiles, features, query, key, numbering, lanes, weights[at:])
            if separate_magnitudes:
                query, key = features.query_magnitudes[head], features.key_magnitudes[head]
                _fill_features(tile, tiles, features, query, key, numbering, lanes, magnitudes[at:])


@njit(inline="always", **EXACT)
def weights_of(first, end, head, tiles, packed, entries, features, separate_magnitudes, numbering, scratch):
    """Return weights and magnitudes [keys, 16] of some tiles and one head; one array for both unless separate."""
    if packed is not None:
        begin, stop = tiles.starts[first] * LANES, tiles.starts[end] * LANES
        weights = packed.weights[head][begin:stop]
        if separate_magnitudes:
            return weights, packed.magnitudes[head][begin:stop]
        return weights, weights
    _fill(first, end, head, tiles, entries, features, separate_magnitudes, numbering, scratch)
    if separate_magnitudes:
        return scratch.weights, scratch.magnitudes
    return scratch.weights, scratch.weights


@njit(**EXACT)
def _spread_entries(tile, tiles, entries, grad_weights, out):
    """Compute the gradients of entries from those of the weights of a tile."""
    for r in range(min(LANES, tiles.num_rows - tile * LANES)):
        i = tiles.order[tile * LANES + r]
        for p in range(entries.row_ptr[i], entries.row_ptr[i + 1]):
            out[p] = grad_weights[entries.slots[p]]


@njit(**EXACT)
def _spread_features(
    tile, tiles, features, query_values, key_values, numbering, lanes, grad_lanes, grad_weights, grad_query, grad_key
):
    """Compute the gradients of features from those of the weights of a tile: the derivative of `_fill_features`."""
    count = _collect_features(tile, tiles, features, query_values, numbering, lanes)
    lanes_at, rows_at, values_at = lanes.ctypes.data, features.rows.ctypes.data, key_values.ctypes.data
    slots_at, grads_at = numbering.key_slots.ctypes.data, grad_weights.ctypes.data
    to_lanes, to_key = grad_lanes.ctypes.data, grad_key.ctypes.data
    for k in range(count):
        column, at = numbering.seen_columns[k], 4 * LANES * k
        first, end = features.column_ptr[column], features.column_ptr[column + 1]
        vectors.collect_column(lanes_at + at, rows_at, values_at, first, end, slots_at, grads_at, to_lanes + at, to_key)
    for r in range(min(LANES, tiles.num_rows - tile * LANES)):
        i = tiles.order[tile * LANES + r]
        for p in range(features.row_ptr[i], features.row_ptr[i + 1]):
            grad_query[p] = grad_lanes[numbering.column_slots[features.columns[p]] * LANES + r]
    for k in range(count):
        numbering.column_slots[numbering.seen_columns[k]] = -1


@njit(inline="always", **EXACT)
def spread(first, end, head, block, tiles, entries, features, separate_magnitudes, numbering, scratch, backward, grads):
    """Compute the gradients of the source of the weights of some tiles: the derivative of `weights_of`."""
    lanes, grad_lanes = scratch.feature_lanes, backward.grad_feature_lanes
    for tile in range(first, end):
        at = (tiles.starts[tile] - tiles.starts[first]) * LANES
        grad_weights, grad_magnitudes = backward.grad_weights[at:], backward.grad_magnitudes[at:]
        if entries is not None:
            _spread_entries(tile, tiles, entries, grad_weights, grads.values[head])
            if separate_magnitudes:
                _spread_entries(tile, tiles, entries, grad_magnitudes, grads.magnitudes[head])
        if features is not None:
            _number_keys(tile, tiles, numbering)
            _spread_features(
                tile, tiles, features, features.query_values[head], features.key_values[head], numbering, lanes,
                grad_lanes, grad_weights, grads.query_values[head], grads.key_values[block, head],
            )  # fmt: skip
            if separate_magnitudes:
                _spread_features(
                    tile, tiles, features, features.query_magnitudes[head], features.key_magnitudes[head], numbering,
                    lanes, grad_lanes, grad_magnitudes, grads.query_magnitudes[head], grads.key_magnitudes[block, head],
                )  # fmt: skip


def _pack(start_block, stop_block, tiles, features, separate_magnitudes, blocks, feature_lanes, numbering, packed):
    """Compute the packed weights of all tiles, which must be 0 before, from features."""
    for block in range(start_block, stop_block):
        tables, lanes = numbering_of(numbering, block), feature_lanes[block]
        for tile in range(blocks[block], blocks[block + 1]):
            first, last = tiles.starts[tile] * LANES, tiles.starts[tile + 1] * LANES
            _number_keys(tile, tiles, tables)
            for head in range(packed.weights.shape[0]):
                query, key = features.query_values[head], features.key_values[head]
                _fill_features(tile, tiles, features, query, key, tables, lanes, packed.weights[head][first:last])
                if separate_magnitudes:
                    query, key = features.query_magnitudes[head], features.key_magnitudes[head]
                    _fill_features(
                        tile, tiles, features, query, key, tables, lanes, packed.magnitudes[head][first:last]
                    )


pack_kernel = BlockKernel(_pack)
