"""Attention in tiles of 16 queries, for float32 on the CPU: how tiles are laid out, and the kernels over them.

Queries with many keys in common share a tile. A tile visits the union of their keys: keys that at least four of its
queries see are taken eight at a time against all 16 lanes (``topomask/ops/vectors.py``), the others pair by pair. The
weights of a tile, [keys, 16], come from one of three sources: packed weights, entries of a pattern, or walk features,
whose product is then formed tile by tile and never stored.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from topomask.ops import vectors
from topomask.ops.backend import Kernel, arrays

_LANES, _KEYS = vectors.LANES, vectors.KEYS
# Queries of a tile that must see a key for it to be taken with all lanes.
MIN_LANES = 4
# Neighbours of a node that are looked at when nodes are put into groups.
_NEIGHBOURS = 64
# Beyond this the exponent of a score is cut: see `topomask/ops/pair_attention/reference.py`.
_MAX_EXPONENT = 60.0
_LARGEST_EXPONENT = 85.0
# Stands for minus infinity, which kernels with fast mathematics must not meet.
_LOWEST = np.float32(-1e30)

PACKED, ENTRIES, FEATURES = 0, 1, 2


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


def _order_nodes(row_ptr, columns, order):
    """Put nodes that are close in a graph next to each other, in groups of 16 that are grown from a seed.

    The neighbour with the most edges into the group comes next, so groups are round rather than long.
    """
    num_nodes = row_ptr.shape[0] - 1
    taken, links = np.zeros(num_nodes, np.bool_), np.zeros(num_nodes, np.int32)
    frontier = np.empty(_LANES * _NEIGHBOURS, np.int32)
    placed, seed, size = 0, 0, 0
    while placed < num_nodes:
        if placed % _LANES == 0 or size == 0:
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
    """The keys that a tile sees, with a bit for every lane that does; through features where ``column_ptr`` is given."""
    count, inner_count = 0, 0
    through = column_ptr.shape[0] > 0
    # The two loops spell out the same steps: a function that takes arrays would cost more than it does.
    for r in range(min(_LANES, num_rows - tile * _LANES)):
        i = order[tile * _LANES + r]
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
            sizes[tile, 0], sizes[tile, 1] = (full + _KEYS - 1) // _KEYS * _KEYS, count - full
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
            for r in range(_LANES):
                rest_ptr[tile * _LANES + r] = p
                for k in range(ends[tile], starts[tile + 1]):
                    if bits[keys[k]] >> r & 1:
                        rest[p] = k - starts[tile]
                        p += 1
            if slots.shape[0] > 0:
                for r in range(min(_LANES, num_rows - tile * _LANES)):
                    i = order[tile * _LANES + r]
                    for p in range(row_ptr[i], row_ptr[i + 1]):
                        slots[p] = where[columns[p]] * _LANES + r
            for k in range(count):
                bits[found[k]] = 0


@njit(error_model="numpy")
def _fill_entries(tile, order, num_rows, row_ptr, slots, values, weights):
    for r in range(min(_LANES, num_rows - tile * _LANES)):
        i = order[tile * _LANES + r]
        for p in range(row_ptr[i], row_ptr[i + 1]):
            weights[slots[p]] = values[p]


@njit(error_model="numpy")
def _find_inner(tile, order, num_rows, row_ptr, columns, values, inner_where, inner, features):
    """Features of a tile by column, [columns, 16]; ``inner_where`` is -1 before, and is to be cleaned with ``inner``."""
    count = 0
    for r in range(min(_LANES, num_rows - tile * _LANES)):
        i = order[tile * _LANES + r]
        for p in range(row_ptr[i], row_ptr[i + 1]):
            c = columns[p]
            k = inner_where[c]
            if k < 0:
                k = inner_where[c] = count
                inner[count] = c
                features[k * _LANES : (k + 1) * _LANES] = 0
                count += 1
            features[k * _LANES + r] = values[p]
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
            vectors.spread_column(feature + 4 * _LANES * k, row, value, column_ptr[c], column_ptr[c + 1], place, to)


@njit(error_model="numpy")
def _spread_features(tile, layout, features, maps, inner_lanes, inner_grads, sizes_too, weights, sizes, grads, block):
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
            at = 4 * _LANES * k
            vectors.collect_column(feature + at, row, value, first, last, place, grad, to + at, to_key)
        for r in range(min(_LANES, num_rows - tile * _LANES)):
            i = order[tile * _LANES + r]
            for p in range(row_ptr[i], row_ptr[i + 1]):
                grad_own[p] = inner_grads[inner_where[columns[p]] * _LANES + r]
        for k in range(count):
            inner_where[inner[k]] = -1


@njit(error_model="numpy")
def _fill(tile, source, layout, entries, features, maps, inner_lanes, own, weights, sizes):
    """Weights and sizes [keys, 16] of a tile from entries or features."""
    size = layout[1][tile + 1] - layout[1][tile]
    weights[: size * _LANES] = 0
    if own:
        sizes[: size * _LANES] = 0
    if source == ENTRIES:
        row_ptr, slots, values, entry_sizes = entries
        _fill_entries(tile, layout[0], layout[6], row_ptr, slots, values, weights)
        if own:
            _fill_entries(tile, layout[0], layout[6], row_ptr, slots, entry_sizes, sizes)
    else:
        _fill_features(tile, layout, features, maps, inner_lanes, own, weights, sizes)


@njit(error_model="numpy")
def _copy_rows(tile, order, x, padded, out):
    """Rows of a tile, [16, padded]; what is over stays zero."""
    width = x.shape[1]
    for r in range(_LANES):
        i = order[tile * _LANES + r]
        for a in range(width):
            out[r * padded + a] = x[i, a]


@njit(error_model="numpy", fastmath=True)
def _exponentials(x, bits, count):
    """Powers of e, in place; ``bits`` is room for as many integers."""
    for k in range(count):
        value = min(max(x[k], np.float32(-87.0)), np.float32(88.0))
        turns = value * np.float32(1.4426950408889634)
        whole = np.int32(turns + (np.float32(0.5) if turns > 0 else np.float32(-0.5)))
        rest = value - np.float32(whole) * np.float32(0.693359375)
        rest = rest - np.float32(whole) * np.float32(-2.12194440e-4)
        power = np.float32(1.9875691500e-4)
        power = power * rest + np.float32(1.3981999507e-3)
        power = power * rest + np.float32(8.3334519073e-3)
        power = power * rest + np.float32(4.1665795894e-2)
        power = power * rest + np.float32(1.6666665459e-1)
        power = power * rest + np.float32(5.0000001201e-1)
        power = power * rest * rest + rest + np.float32(1.0)
        bits[k] = (whole + np.int32(127)) << np.int32(23)
        x[k] = power if x[k] >= np.float32(-87.0) else np.float32(0.0)
    powers_of_two = bits.view(np.float32)
    for k in range(count):
        x[k] *= powers_of_two[k]


@njit(error_model="numpy")
def _to_powers(count, scores, sizes, lanes, bits):
    """exp(score - shift) in place, where the shift of a lane makes its largest power times size about 1."""
    top, cap = lanes[:_LANES], lanes[_LANES : 2 * _LANES]
    top[:], cap[:] = _LOWEST, 0
    patterns = sizes.view(np.int32)
    for c in range(count):
        for r in range(_LANES):
            x = c * _LANES + r
            # The exponent of a size is its logarithm but for a factor of 2, which is enough: the shift cancels.
            height = scores[x] + np.float32(0.6931472) * np.float32(((patterns[x] & 0x7FFFFFFF) >> 23) - 126)
            if sizes[x] != 0:
                top[r] = max(top[r], height)
                cap[r] = max(cap[r], abs(sizes[x]))
    for r in range(_LANES):
        top[r] = top[r] if top[r] > np.float32(0.9) * _LOWEST else 0
        cap[r] = min(_MAX_EXPONENT - np.log(cap[r]), _LARGEST_EXPONENT) if cap[r] > 0 else 0
    for c in range(count):
        for r in range(_LANES):
            scores[c * _LANES + r] = min(scores[c * _LANES + r] - top[r], cap[r])
    _exponentials(scores, bits, count * _LANES)


@njit(error_model="numpy")
def _hide_keys(tile, layout, is_key, scores):
    """Scores of padding become as low as can be."""
    starts, keys = layout[1], layout[3]
    for k in range(starts[tile], starts[tile + 1]):
        if not is_key[keys[k]]:
            first = (k - starts[tile]) * _LANES
            scores[first : first + _LANES] = _LOWEST


@njit(error_model="numpy")
def _score(tile, layout, lanes, rows, padded, x, scores):
    """Products of the 16 rows of a tile with its keys, [keys, 16]; zero where a key is not seen and taken alone."""
    _, starts, ends, keys, rest_ptr, rest, _ = layout
    width = x.shape[1]
    left, row, right, to = lanes.ctypes.data, rows.ctypes.data, x.ctypes.data, scores.ctypes.data
    key = keys.ctypes.data + 4 * starts[tile]
    for first in range(0, ends[tile] - starts[tile], _KEYS):
        vectors.dot_keys(left, right, key + 4 * first, width, to + 4 * _LANES * first, right, width)
    scores[(ends[tile] - starts[tile]) * _LANES : (starts[tile + 1] - starts[tile]) * _LANES] = 0
    for r in range(_LANES):
        for p in range(rest_ptr[tile * _LANES + r], rest_ptr[tile * _LANES + r + 1]):
            j = np.int64(keys[starts[tile] + rest[p]])
            scores[rest[p] * _LANES + r] = vectors.dot_row(row + 4 * r * padded, right + 4 * j * width, width)


@njit(error_model="numpy")
def _attend_linear(tile, layout, lanes, rows, padded, k, v, weights, sizes, scores, totals, out_lanes, deep, out):
    """Numerator [16, deep] and denominator [16] of linear attention of a tile."""
    _, starts, ends, keys, rest_ptr, rest, _ = layout
    width, depth = k.shape[1], v.shape[1]
    out_lanes[: deep * _LANES] = 0
    totals[:_LANES] = 0
    left, row, k_at, v_at = lanes.ctypes.data, rows.ctypes.data, k.ctypes.data, v.ctypes.data
    weight, size, score, total = weights.ctypes.data, sizes.ctypes.data, scores.ctypes.data, totals.ctypes.data
    to, out_row = out_lanes.ctypes.data, out.ctypes.data
    key = keys.ctypes.data + 4 * starts[tile]
    for first in range(0, ends[tile] - starts[tile], _KEYS):
        at = 4 * _LANES * first
        vectors.weigh_keys(left, k_at, key + 4 * first, width, weight + at, size + at, score, total, v_at, depth)
        vectors.add_keys(score, v_at, key + 4 * first, depth, to, k_at, width)
    vectors.lanes_to_rows(to, deep, out_row)
    for r in range(_LANES):
        for p in range(rest_ptr[tile * _LANES + r], rest_ptr[tile * _LANES + r + 1]):
            j = np.int64(keys[starts[tile] + rest[p]])
            product = vectors.dot_row(row + 4 * r * padded, k_at + 4 * j * width, width)
            totals[r] += product * sizes[rest[p] * _LANES + r]
            factor = product * weights[rest[p] * _LANES + r]
            vectors.add_row(factor, v_at + 4 * j * depth, out_row + 4 * r * deep, depth)


@njit(error_model="numpy")
def _combine(tile, layout, scores, x, lanes, padded, out):
    """out[r] = sum over keys of score x[key], [16, padded]."""
    _, starts, ends, keys, rest_ptr, rest, _ = layout
    width = x.shape[1]
    lanes[: padded * _LANES] = 0
    score, right, to, out_row = scores.ctypes.data, x.ctypes.data, lanes.ctypes.data, out.ctypes.data
    key = keys.ctypes.data + 4 * starts[tile]
    for first in range(0, ends[tile] - starts[tile], _KEYS):
        vectors.add_keys(score + 4 * _LANES * first, right, key + 4 * first, width, to, right, width)
    vectors.lanes_to_rows(to, padded, out_row)
    for r in range(_LANES):
        for p in range(rest_ptr[tile * _LANES + r], rest_ptr[tile * _LANES + r + 1]):
            j = np.int64(keys[starts[tile] + rest[p]])
            factor = scores[rest[p] * _LANES + r]
            vectors.add_row(factor, right + 4 * j * width, out_row + 4 * r * padded, width)


@njit(error_model="numpy")
def _differentiate(
    tile, layout, softmax, own, lanes, rows, padded, grad_lanes, grad_rows, deep, k, v, weights, sizes, scores, through,
    bare, grad_weights, grad_sizes, query_lanes, grad_query, grad_k, grad_v,
):  # fmt: skip
    """Gradients of a tile; ``scores`` hold powers for softmax attention."""
    _, starts, ends, keys, rest_ptr, rest, _ = layout
    width, depth = k.shape[1], v.shape[1]
    query_lanes[: padded * _LANES] = 0
    left, row, grad_left, grad_row = lanes.ctypes.data, rows.ctypes.data, grad_lanes.ctypes.data, grad_rows.ctypes.data
    k_at, v_at, to_k, to_v = k.ctypes.data, v.ctypes.data, grad_k.ctypes.data, grad_v.ctypes.data
    weight, size, score, pull = weights.ctypes.data, sizes.ctypes.data, scores.ctypes.data, through.ctypes.data
    push, grad_weight, grad_size = bare.ctypes.data, grad_weights.ctypes.data, grad_sizes.ctypes.data
    to, out_row = query_lanes.ctypes.data, grad_query.ctypes.data
    key = keys.ctypes.data + 4 * starts[tile]
    for first in range(0, ends[tile] - starts[tile], _KEYS):
        at, these = 4 * _LANES * first, key + 4 * first
        if not softmax:
            vectors.dot_keys(left, k_at, these, width, score + at, v_at, depth)
        vectors.dot_keys(grad_left, v_at, these, depth, pull, to_v, deep)
        vectors.differentiate_keys(
            np.int64(softmax), np.int64(own), score + at, pull, weight + at, size + at, push, grad_weight + at,
            grad_size + at,
        )  # fmt: skip
        vectors.add_rows(pull, grad_row, deep, to_v, these)
        vectors.add_rows(score + at, row, padded, to_k, these)
        vectors.add_keys(score + at, k_at, these, width, to, k_at, width)
    vectors.lanes_to_rows(to, padded, out_row)
    for r in range(_LANES):
        for p in range(rest_ptr[tile * _LANES + r], rest_ptr[tile * _LANES + r + 1]):
            j, x = np.int64(keys[starts[tile] + rest[p]]), rest[p] * _LANES + r
            product = scores[x] if softmax else vectors.dot_row(row + 4 * r * padded, k_at + 4 * j * width, width)
            by_value = vectors.dot_row(grad_row + 4 * r * deep, v_at + 4 * j * depth, depth)
            grad_weights[x] += product * (by_value if own else by_value + bare[r])
            if own:
                grad_sizes[x] += product * bare[r]
            slope = weights[x] * by_value + sizes[x] * bare[r]
            slope = product * slope if softmax else slope
            vectors.add_row(product * weights[x], grad_row + 4 * r * deep, to_v + 4 * j * deep, depth)
            vectors.add_row(slope, row + 4 * r * padded, to_k + 4 * j * padded, width)
            vectors.add_row(slope, k_at + 4 * j * width, out_row + 4 * r * padded, width)


def _weights(layout, features, own, blocks, scratch, maps, weights, sizes):
    """Packed weights of all tiles from walk features."""
    starts = layout[1]
    for block in prange(blocks.shape[0] - 1):
        own_maps = (maps[0][block], maps[1][block], maps[2][block])
        for tile in range(blocks[block], blocks[block + 1]):
            first, last = starts[tile] * _LANES, starts[tile + 1] * _LANES
            _fill_features(
                tile, layout, features, own_maps, scratch[block], own, weights[first:last], sizes[first:last]
            )


def _forward(
    source, softmax, normalize, own, layout, packed, entries, features, q, k, v, is_key, blocks, scratch, bits, maps, out,
    denominator,
):  # fmt: skip
    """Attention [B, R, D] and its denominator [B, R]."""
    order, starts, num_rows = layout[0], layout[1], layout[6]
    batch, _, width = q.shape
    depth = v.shape[2]
    padded, deep = (width + 15) // 16 * 16, (depth + 15) // 16 * 16
    for block in prange(blocks.shape[0] - 1):
        room = scratch[block]
        most = bits.shape[1]
        weights, sizes, scores = room[:most], room[most : 2 * most], room[2 * most : 3 * most]
        at = 3 * most
        lanes, rows = room[at : at + padded * 16], room[at + padded * 16 : at + padded * 32]
        at += padded * 32
        out_lanes, out_rows = room[at : at + deep * 16], room[at + deep * 16 : at + deep * 32]
        totals, inner_lanes = room[at + deep * 32 : at + deep * 32 + 64], room[at + deep * 32 + 64 :]
        own_maps = (maps[0][block], maps[1][block], maps[2][block])
        rows[:] = 0
        for tile in range(blocks[block], blocks[block + 1]):
            size = starts[tile + 1] - starts[tile]
            if source == PACKED:
                first, last = starts[tile] * _LANES, starts[tile + 1] * _LANES
                weights = packed[0][first:last]
                sizes = packed[1][first:last] if own else weights
            else:
                _fill(tile, source, layout, entries, features, own_maps, inner_lanes, own, weights, sizes)
                if not own:
                    sizes = weights
            for b in range(batch):
                _copy_rows(tile, order, q[b], padded, rows)
                vectors.rows_to_lanes(rows.ctypes.data, padded, lanes.ctypes.data)
                if softmax:
                    _score(tile, layout, lanes, rows, padded, k[b], scores)
                    if is_key.shape[0] > 0:
                        _hide_keys(tile, layout, is_key[b], scores)
                    _to_powers(size, scores, sizes, totals[16:], bits[block])
                    count = size * _LANES
                    vectors.weigh(scores.ctypes.data, weights.ctypes.data, sizes.ctypes.data, count, totals.ctypes.data)
                    _combine(tile, layout, scores, v[b], out_lanes, deep, out_rows)
                else:
                    _attend_linear(
                        tile, layout, lanes, rows, padded, k[b], v[b], weights, sizes, scores, totals, out_lanes, deep,
                        out_rows,
                    )  # fmt: skip
                for r in range(min(_LANES, num_rows - tile * _LANES)):
                    i = order[tile * _LANES + r]
                    total = totals[r]
                    denominator[b, i] = total
                    factor = np.float32(1)
                    if normalize:
                        factor = 1 / total if total != 0 else np.float32(0)
                    for d in range(depth):
                        out[b, i, d] = out_rows[r * deep + d] * factor


def _backward(
    source, softmax, normalize, own, layout, packed, entries, features, q, k, v, is_key, grad, out, denominator, blocks,
    scratch, bits, maps, grad_entries, grad_features, grad_q, parts_k, parts_v,
):  # fmt: skip
    """Gradients of everything; those of keys and values have one summand per block and rows of padded width."""
    order, starts, num_rows = layout[0], layout[1], layout[6]
    batch, _, width = q.shape
    depth = v.shape[2]
    padded, deep = (width + 15) // 16 * 16, (depth + 15) // 16 * 16
    for block in prange(blocks.shape[0] - 1):
        room = scratch[block]
        most = bits.shape[1]
        weights, sizes, scores = room[:most], room[most : 2 * most], room[2 * most : 3 * most]
        through, grad_weights = room[3 * most : 4 * most], room[4 * most : 5 * most]
        grad_sizes = room[5 * most : 6 * most]
        at = 6 * most
        lanes, rows = room[at : at + padded * 16], room[at + padded * 16 : at + padded * 32]
        at += padded * 32
        grad_lanes, grad_rows = room[at : at + deep * 16], room[at + deep * 16 : at + deep * 32]
        at += deep * 32
        query_lanes, query_rows = room[at : at + padded * 16], room[at + padded * 16 : at + padded * 32]
        at += padded * 32
        totals, at = room[at : at + 64], at + 64
        half = (room.shape[0] - at) // 2
        inner_lanes, inner_grads = room[at : at + half], room[at + half :]
        own_maps = (maps[0][block], maps[1][block], maps[2][block])
        rows[:], grad_rows[:] = 0, 0
        for tile in range(blocks[block], blocks[block + 1]):
            size = starts[tile + 1] - starts[tile]
            if source == PACKED:
                first, last = starts[tile] * _LANES, starts[tile + 1] * _LANES
                weights = packed[0][first:last]
                sizes = packed[1][first:last] if own else weights
            else:
                _fill(tile, source, layout, entries, features, own_maps, inner_lanes, own, weights, sizes)
                if not own:
                    sizes = weights
            grad_weights[: size * _LANES] = 0
            if own:
                grad_sizes[: size * _LANES] = 0
            for b in range(batch):
                _copy_rows(tile, order, q[b], padded, rows)
                vectors.rows_to_lanes(rows.ctypes.data, padded, lanes.ctypes.data)
                bare = totals[:16]
                for r in range(_LANES):
                    i = order[tile * _LANES + r]
                    factor, inner = np.float32(1), np.float32(0)
                    if r >= num_rows - tile * _LANES:
                        factor = np.float32(0)
                    elif normalize:
                        factor = 1 / denominator[b, i] if denominator[b, i] != 0 else np.float32(0)
                    for d in range(depth):
                        grad_rows[r * deep + d] = grad[b, i, d] * factor
                        inner += grad_rows[r * deep + d] * out[b, i, d]
                    bare[r] = -inner if normalize else np.float32(0)
                vectors.rows_to_lanes(grad_rows.ctypes.data, deep, grad_lanes.ctypes.data)
                if softmax:
                    _score(tile, layout, lanes, rows, padded, k[b], scores)
                    if is_key.shape[0] > 0:
                        _hide_keys(tile, layout, is_key[b], scores)
                    _to_powers(size, scores, sizes, totals[16:], bits[block])
                _differentiate(
                    tile, layout, softmax, own, lanes, rows, padded, grad_lanes, grad_rows, deep, k[b], v[b], weights,
                    sizes, scores, through, bare, grad_weights, grad_sizes, query_lanes, query_rows, parts_k[block, b],
                    parts_v[block, b],
                )  # fmt: skip
                for r in range(min(_LANES, num_rows - tile * _LANES)):
                    i = order[tile * _LANES + r]
                    for a in range(width):
                        grad_q[b, i, a] = query_rows[r * padded + a]
            if source == ENTRIES:
                _spread_entries(tile, order, num_rows, entries[0], entries[1], grad_weights, grad_entries[0])
                if own:
                    _spread_entries(tile, order, num_rows, entries[0], entries[1], grad_sizes, grad_entries[1])
            elif source == FEATURES:
                _spread_features(
                    tile, layout, features, own_maps, inner_lanes, inner_grads, own, grad_weights, grad_sizes,
                    grad_features, block,
                )  # fmt: skip


@njit(error_model="numpy")
def _spread_entries(tile, order, num_rows, row_ptr, slots, grads, out):
    for r in range(min(_LANES, num_rows - tile * _LANES)):
        i = order[tile * _LANES + r]
        for p in range(row_ptr[i], row_ptr[i + 1]):
            out[p] = grads[slots[p]]


_order_kernel = Kernel(_order_nodes, threads=False)
_count_kernel, _fill_kernel = Kernel(_count_tiles), Kernel(_fill_tiles)
_weights_kernel = Kernel(_weights)
_forward_kernel, _backward_kernel = Kernel(_forward, fastmath=True), Kernel(_backward, fastmath=True)


def _blocks(starts: Tensor) -> np.ndarray:
    """Tiles where blocks with about equally many keys begin: one per thread."""
    ptr = starts.numpy()
    count = max(1, min(torch.get_num_threads(), len(ptr) - 1))
    inner = np.minimum(np.searchsorted(ptr, np.linspace(0, ptr[-1], count + 1)[1:-1]), len(ptr) - 1)
    return np.concatenate([[0], inner, [len(ptr) - 1]]).astype(np.int64)


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
    num_tiles = -(-num_rows // _LANES)
    rows_in_order = np.arange(num_rows, dtype=np.int32) if order is None else order.to(torch.int32).numpy()
    places = np.minimum(np.arange(num_tiles * _LANES), num_rows - 1)
    lanes = np.ascontiguousarray(rows_in_order[places])
    pattern = arrays(row_ptr, columns)
    through = column_ptr is not None and rows is not None
    by_column = arrays(column_ptr, rows) if through else [np.zeros(0, np.int64), np.zeros(0, np.int32)]  # type: ignore[arg-type]
    inputs = (*pattern, *by_column, lanes, num_keys, len(by_column[0]), MIN_LANES)
    blocks = np.linspace(0, num_tiles, max(1, torch.get_num_threads()) + 1).astype(np.int64)
    sizes, others = np.zeros((num_tiles, 2), np.int64), np.zeros(num_tiles, np.int64)
    inners, pairs = np.zeros(num_tiles, np.int64), np.zeros(num_tiles, np.int64)
    _count_kernel(*inputs, blocks, sizes, others, inners, pairs)
    starts = np.concatenate([[0], np.cumsum(sizes.sum(axis=1))])
    ends, rest_starts = starts[:-1] + sizes[:, 0], np.concatenate([[0], np.cumsum(others)])
    keys, rest = np.zeros(starts[-1] + _KEYS, np.int32), np.zeros(rest_starts[-1], np.int32)
    rest_ptr = np.full(num_tiles * _LANES + 1, rest_starts[-1], np.int64)
    slots = np.zeros(0 if through else len(columns), np.int32)
    _fill_kernel(*inputs, blocks, starts, ends, rest_starts, keys, rest_ptr, rest, slots)
    tensors = (torch.from_numpy(x) for x in (lanes, starts, ends, keys, rest_ptr, rest))
    most = int(np.diff(starts).max(initial=0))
    return Layout(*tensors, num_rows, int(pairs.sum()), most, int(inners.max(initial=0))), torch.from_numpy(slots)


class Source(NamedTuple):
    """Where the weights of a layout come from; tensors that a kind does not need are empty."""

    kind: int  # PACKED, ENTRIES or FEATURES
    own: bool  # whether sizes differ from weights
    packed: tuple[Tensor, Tensor]  # weights and sizes [starts[-1] * 16]
    entries: tuple[Tensor, Tensor, Tensor, Tensor]  # row_ptr, slots, values, sizes
    # Of queries: row_ptr, columns, values, sizes; of keys, by column: column_ptr, rows, values, sizes.
    features: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


_FLOATS, _INTS, _LONGS = (torch.zeros(0, dtype=t, device="cpu") for t in (torch.float32, torch.int32, torch.int64))
_NO_PACKED = (_FLOATS, _FLOATS)
_NO_ENTRIES = (_LONGS, _INTS, _FLOATS, _FLOATS)
_NO_FEATURES = (_LONGS, _INTS, _FLOATS, _FLOATS, _LONGS, _INTS, _FLOATS, _FLOATS)


def from_packed(weights: Tensor, sizes: Tensor) -> Source:
    """Weights as :func:`pack_features` gave them."""
    return Source(PACKED, len(sizes) > 0, (weights, sizes), _NO_ENTRIES, _NO_FEATURES)


def from_entries(row_ptr: Tensor, slots: Tensor, values: Tensor, sizes: Tensor) -> Source:
    """Values of the entries of a pattern; ``sizes`` is empty where they are the values."""
    return Source(ENTRIES, len(sizes) > 0, _NO_PACKED, (row_ptr, slots, values, sizes), _NO_FEATURES)


def from_features(*features: Tensor) -> Source:
    """Products of walk features of queries and keys."""
    assert len(features) == 8
    return Source(FEATURES, len(features[3]) > 0, _NO_PACKED, _NO_ENTRIES, features)


def _maps(layout: Layout, source: Source, num_keys: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Room for numbering the columns and keys that a tile sees, for every block."""
    if source.kind != FEATURES:
        return tuple(np.zeros((count, 0), np.int32) for _ in range(3))  # type: ignore[return-value]
    num_inner = len(source.features[4]) - 1
    return (
        np.full((count, num_inner), -1, np.int32),
        np.empty((count, layout.most_inner), np.int32),
        np.empty((count, num_keys), np.int32),
    )


def _nested(parts: tuple[Tensor, ...]) -> tuple[np.ndarray, ...]:
    return tuple(arrays(*parts))


def _tables(layout: Layout) -> tuple[np.ndarray | int, ...]:
    return (*arrays(*layout[:6]), layout.num_rows)


def pack_features(layout: Layout, source: Source, num_keys: int) -> tuple[Tensor, Tensor]:
    """Weights and sizes of all tiles, [starts[-1] * 16]; sizes are empty where they are the weights."""
    count = int(layout.starts[-1]) * _LANES
    weights, sizes = _FLOATS.new_zeros(count), _FLOATS.new_zeros(count if source.own else 0)
    blocks = _blocks(layout.starts)
    scratch = np.empty((len(blocks) - 1, layout.most_inner * _LANES), np.float32)
    maps = _maps(layout, source, num_keys, len(blocks) - 1)
    _weights_kernel(
        _tables(layout), _nested(source.features), source.own, blocks, scratch, maps, *arrays(weights, sizes)
    )
    return weights, sizes


def _room(layout: Layout, count: int, num_parts: int, num_inner: int, *widths: int) -> tuple[np.ndarray, np.ndarray]:
    """Floats and integers for every block to work with."""
    most = layout.most_keys * _LANES
    padded = sum(_padded(width) for width in widths)
    size = num_parts * most + 32 * padded + 64 + num_inner * layout.most_inner * _LANES
    return torch.empty(count, size, dtype=torch.float32, device="cpu").numpy(), np.empty((count, most), np.int32)


def _padded(width: int) -> int:
    return -(-width // _LANES) * _LANES


def forward(
    layout: Layout, source: Source, q: Tensor, k: Tensor, v: Tensor, is_key: Tensor, softmax: bool, normalize: bool
) -> tuple[Tensor, Tensor]:
    """Attention [B, R, D] and its denominator [B, R]."""
    out, denominator = q.new_empty(*q.shape[:2], v.shape[2]), q.new_empty(q.shape[:2])
    blocks = _blocks(layout.starts)
    scratch, bits = _room(layout, len(blocks) - 1, 3, 1, q.shape[2], v.shape[2])
    _forward_kernel(
        source.kind,
        softmax,
        normalize,
        source.own,
        _tables(layout),
        *(_nested(parts) for parts in source[2:]),
        *arrays(q, k, v, is_key),
        blocks,
        scratch,
        bits,
        _maps(layout, source, k.shape[1], len(blocks) - 1),
        *arrays(out, denominator),
    )
    return out, denominator


def backward(
    layout: Layout,
    source: Source,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_key: Tensor,
    softmax: bool,
    normalize: bool,
    grad: Tensor,
    out: Tensor,
    denominator: Tensor,
) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    """Gradients of what the weights were made of, and of q, k and v.

    The first are those of (values, sizes) for entries, of (query values, query sizes, key values, key sizes) for
    features, and none for packed weights.
    """
    blocks = _blocks(layout.starts)
    count = len(blocks) - 1
    scratch, bits = _room(layout, count, 6, 2, q.shape[2], q.shape[2], v.shape[2])
    grad_q = torch.empty_like(q, memory_format=torch.contiguous_format)
    parts_k, parts_v = (q.new_zeros(count, *x.shape[:2], _padded(x.shape[2])) for x in (k, v))
    grad_entries = [torch.empty_like(x) for x in source.entries[2:]]
    grad_query = [torch.empty_like(x) for x in source.features[2:4]]
    parts_key = [x.new_zeros(count, len(x)) for x in source.features[6:]]
    _backward_kernel(
        source.kind,
        softmax,
        normalize,
        source.own,
        _tables(layout),
        *(_nested(parts) for parts in source[2:]),
        *arrays(q, k, v, is_key, grad, out, denominator),
        blocks,
        scratch,
        bits,
        _maps(layout, source, k.shape[1], count),
        tuple(arrays(*grad_entries)),
        tuple(arrays(*grad_query, *parts_key)),
        *arrays(grad_q, parts_k, parts_v),
    )
    grad_k, grad_v = (_sum_parts(parts)[..., : x.shape[2]].contiguous() for parts, x in ((parts_k, k), (parts_v, v)))
    grads = [*grad_query, *(_sum_parts(part) for part in parts_key)] if source.kind == FEATURES else grad_entries
    return ([] if source.kind == PACKED else grads), grad_q, grad_k, grad_v


def _sum_parts(parts: Tensor) -> Tensor:
    """The sum over blocks, in the memory of the first."""
    total = parts[0]
    for part in parts[1:]:
        total += part
    return total
