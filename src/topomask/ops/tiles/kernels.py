"""Attention of one tile after the other."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from topomask.ops.backend import FAST_MATH, Kernel
from topomask.ops.pair_attention.reference import LARGEST_EXPONENT, LOWEST, MAX_EXPONENT
from topomask.ops.tiles import vectors
from topomask.ops.tiles.vectors import KEYS, LANES
from topomask.ops.tiles.weights import ENTRIES, FEATURES, PACKED, fill, spread_entries, spread_features

_LOWEST = np.float32(LOWEST)


@njit(error_model="numpy")
def _copy_rows(tile, order, x, padded, out):
    """Rows of a tile, [16, padded]; what is over stays zero."""
    width = x.shape[1]
    for r in range(LANES):
        i = order[tile * LANES + r]
        for a in range(width):
            out[r * padded + a] = x[i, a]


@njit(error_model="numpy", fastmath=set(FAST_MATH))
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
        # What is not a number stays so: it differs from itself.
        x[k] = np.float32(0.0) if x[k] < np.float32(-87.0) else power + (x[k] - x[k])
    powers_of_two = bits.view(np.float32)
    for k in range(count):
        x[k] *= powers_of_two[k]


@njit(error_model="numpy")
def _to_powers(count, scores, sizes, lanes, bits):
    """exp(score - shift) in place, where the shift of a lane makes its largest power times size about 1."""
    top, cap = lanes[:LANES], lanes[LANES : 2 * LANES]
    top[:], cap[:] = _LOWEST, 0
    patterns = sizes.view(np.int32)
    for c in range(count):
        for r in range(LANES):
            x = c * LANES + r
            # The exponent of a size is its logarithm but for a factor of 2, which is enough: the shift cancels.
            height = scores[x] + np.float32(0.6931472) * np.float32(((patterns[x] & 0x7FFFFFFF) >> 23) - 126)
            if sizes[x] != 0:
                top[r] = max(top[r], height)
                cap[r] = max(cap[r], abs(sizes[x]))
    for r in range(LANES):
        top[r] = top[r] if top[r] > np.float32(0.9) * _LOWEST else 0
        cap[r] = min(MAX_EXPONENT - np.log(cap[r]), LARGEST_EXPONENT) if cap[r] > 0 else 0
    for c in range(count):
        for r in range(LANES):
            scores[c * LANES + r] = min(scores[c * LANES + r] - top[r], cap[r])
    _exponentials(scores, bits, count * LANES)


@njit(error_model="numpy")
def _hide_keys(tile, layout, is_key, scores):
    """Scores of padding become as low as can be."""
    starts, keys = layout[1], layout[3]
    for k in range(starts[tile], starts[tile + 1]):
        if not is_key[keys[k]]:
            first = (k - starts[tile]) * LANES
            scores[first : first + LANES] = _LOWEST


@njit(error_model="numpy")
def _score(tile, layout, lanes, rows, padded, x, scores):
    """Products of the 16 rows of a tile with its keys, [keys, 16]; zero where a key is not seen and taken alone."""
    _, starts, ends, keys, rest_ptr, rest, _ = layout
    width = x.shape[1]
    left, row, right, to = lanes.ctypes.data, rows.ctypes.data, x.ctypes.data, scores.ctypes.data
    key = keys.ctypes.data + 4 * starts[tile]
    for first in range(0, ends[tile] - starts[tile], KEYS):
        vectors.dot_keys(left, right, key + 4 * first, width, to + 4 * LANES * first, right, key + 4 * first, width)
    scores[(ends[tile] - starts[tile]) * LANES : (starts[tile + 1] - starts[tile]) * LANES] = 0
    for r in range(LANES):
        for p in range(rest_ptr[tile * LANES + r], rest_ptr[tile * LANES + r + 1]):
            j = np.int64(keys[starts[tile] + rest[p]])
            scores[rest[p] * LANES + r] = vectors.dot_row(row + 4 * r * padded, right + 4 * j * width, width)


@njit(error_model="numpy")
def _attend_linear(tile, layout, lanes, rows, padded, k, v, weights, sizes, scores, totals, out_lanes, deep, out):
    """Numerator [16, deep] and denominator [16] of linear attention of a tile."""
    _, starts, ends, keys, rest_ptr, rest, _ = layout
    width, depth = k.shape[1], v.shape[1]
    out_lanes[: deep * LANES] = 0
    totals[:LANES] = 0
    left, row, k_at, v_at = lanes.ctypes.data, rows.ctypes.data, k.ctypes.data, v.ctypes.data
    weight, size, score, total = weights.ctypes.data, sizes.ctypes.data, scores.ctypes.data, totals.ctypes.data
    to, out_row = out_lanes.ctypes.data, out.ctypes.data
    key = keys.ctypes.data + 4 * starts[tile]
    for first in range(0, ends[tile] - starts[tile], KEYS):
        at = 4 * LANES * first
        vectors.weigh_keys(left, k_at, key + 4 * first, width, weight + at, size + at, score, total, v_at, depth)
        vectors.add_keys(score, v_at, key + 4 * first, depth, to, k_at, width)
    vectors.lanes_to_rows(to, deep, out_row)
    rest_at = rest.ctypes.data
    for r in range(LANES):
        first, end = rest_ptr[tile * LANES + r], rest_ptr[tile * LANES + r + 1]
        totals[r] += vectors.attend_alone(
            row + 4 * r * padded, k_at, v_at, width, depth, key, rest_at + 4 * first, end - first, weight + 4 * r,
            size + 4 * r, out_row + 4 * r * deep,
        )  # fmt: skip


@njit(error_model="numpy")
def _combine(tile, layout, scores, x, lanes, padded, out):
    """out[r] = sum over keys of score x[key], [16, padded]."""
    _, starts, ends, keys, rest_ptr, rest, _ = layout
    width = x.shape[1]
    lanes[: padded * LANES] = 0
    score, right, to, out_row = scores.ctypes.data, x.ctypes.data, lanes.ctypes.data, out.ctypes.data
    key = keys.ctypes.data + 4 * starts[tile]
    for first in range(0, ends[tile] - starts[tile], KEYS):
        vectors.add_keys(score + 4 * LANES * first, right, key + 4 * first, width, to, right, width)
    vectors.lanes_to_rows(to, padded, out_row)
    for r in range(LANES):
        for p in range(rest_ptr[tile * LANES + r], rest_ptr[tile * LANES + r + 1]):
            j = np.int64(keys[starts[tile] + rest[p]])
            factor = scores[rest[p] * LANES + r]
            vectors.add_row(factor, right + 4 * j * width, out_row + 4 * r * padded, width)


@njit(error_model="numpy")
def _differentiate(
    tile, layout, targets, softmax, own, lanes, rows, padded, grad_lanes, grad_rows, deep, k, v, weights, sizes, scores,
    through, bare, grad_weights, grad_sizes, query_lanes, grad_query, grad_k, grad_v,
):  # fmt: skip
    """Gradients of a tile; ``scores`` hold powers for softmax attention."""
    _, starts, ends, keys, rest_ptr, rest, _ = layout
    width, depth = k.shape[1], v.shape[1]
    query_lanes[: padded * LANES] = 0
    left, row, grad_left, grad_row = lanes.ctypes.data, rows.ctypes.data, grad_lanes.ctypes.data, grad_rows.ctypes.data
    k_at, v_at, to_k, to_v = k.ctypes.data, v.ctypes.data, grad_k.ctypes.data, grad_v.ctypes.data
    weight, size, score, pull = weights.ctypes.data, sizes.ctypes.data, scores.ctypes.data, through.ctypes.data
    push, grad_weight, grad_size = bare.ctypes.data, grad_weights.ctypes.data, grad_sizes.ctypes.data
    to, out_row = query_lanes.ctypes.data, grad_query.ctypes.data
    key, target = keys.ctypes.data + 4 * starts[tile], targets.ctypes.data
    for first in range(0, ends[tile] - starts[tile], KEYS):
        at, these, those = 4 * LANES * first, key + 4 * first, target + 4 * first
        if not softmax:
            vectors.dot_keys(left, k_at, these, width, score + at, v_at, these, depth)
        vectors.dot_keys(grad_left, v_at, these, depth, pull, to_v, those, deep)
        vectors.differentiate_keys(
            np.int64(softmax), np.int64(own), score + at, pull, weight + at, size + at, push, grad_weight + at,
            grad_size + at,
        )  # fmt: skip
        vectors.add_rows(pull, grad_row, deep, to_v, those, to_k, those, padded)
        # The next keys are fetched twice, here and below: this is the last use of the gradients of these.
        vectors.add_rows(score + at, row, padded, to_k, those, k_at, these + 4 * KEYS, width)
        vectors.add_keys(score + at, k_at, these, width, to, k_at, width)
    vectors.lanes_to_rows(to, padded, out_row)
    for r in range(LANES):
        for p in range(rest_ptr[tile * LANES + r], rest_ptr[tile * LANES + r + 1]):
            j, x = np.int64(keys[starts[tile] + rest[p]]), rest[p] * LANES + r
            t = np.int64(targets[rest[p]])
            product = scores[x] if softmax else vectors.dot_row(row + 4 * r * padded, k_at + 4 * j * width, width)
            by_value = vectors.dot_row(grad_row + 4 * r * deep, v_at + 4 * j * depth, depth)
            grad_weights[x] += product * (by_value if own else by_value + bare[r])
            if own:
                grad_sizes[x] += product * bare[r]
            slope = weights[x] * by_value + sizes[x] * bare[r]
            slope = product * slope if softmax else slope
            vectors.add_row(product * weights[x], grad_row + 4 * r * deep, to_v + 4 * t * deep, depth)
            vectors.add_row(slope, row + 4 * r * padded, to_k + 4 * t * padded, width)
            vectors.add_row(slope, k_at + 4 * j * width, out_row + 4 * r * padded, width)


def _forward(
    source, softmax, normalize, own, layout, packed, entries, features, q, k, v, is_key, blocks, together, scratch,
    bits, maps, out, denominator,
):  # fmt: skip
    """Attention [B, R, D] and its denominator [B, R]; ``together`` tiles at a time go through the whole batch."""
    order, starts, num_rows = layout[0], layout[1], layout[6]
    batch, _, width = q.shape
    depth = v.shape[2]
    padded, deep = (width + 15) // 16 * 16, (depth + 15) // 16 * 16
    for block in prange(blocks.shape[0] - 1):
        room, most = scratch[block], bits.shape[1]
        many = together * most
        weights, sizes, scores = room[:many], room[many : 2 * many], room[2 * many : 2 * many + most]
        at = 2 * many + most
        lanes, rows = room[at : at + padded * 16], room[at + padded * 16 : at + padded * 32]
        at += padded * 32
        out_lanes, out_rows = room[at : at + deep * 16], room[at + deep * 16 : at + deep * 32]
        totals, inner_lanes = room[at + deep * 32 : at + deep * 32 + 64], room[at + deep * 32 + 64 :]
        own_maps = (maps[0][block], maps[1][block], maps[2][block])
        rows[:] = 0
        for chunk in range(blocks[block], blocks[block + 1], together):
            end = min(chunk + together, blocks[block + 1])
            if source == PACKED:
                weights = packed[0][starts[chunk] * LANES : starts[end] * LANES]
                sizes = packed[1][starts[chunk] * LANES : starts[end] * LANES] if own else weights
            else:
                fill(chunk, end, source, layout, entries, features, own_maps, inner_lanes, own, weights, sizes)
                if not own:
                    sizes = weights
            for b in range(batch):
                for tile in range(chunk, end):
                    first, size = (starts[tile] - starts[chunk]) * LANES, starts[tile + 1] - starts[tile]
                    weight, magnitude = weights[first:], sizes[first:]
                    _copy_rows(tile, order, q[b], padded, rows)
                    vectors.rows_to_lanes(rows.ctypes.data, padded, lanes.ctypes.data)
                    if softmax:
                        _score(tile, layout, lanes, rows, padded, k[b], scores)
                        if is_key.shape[0] > 0:
                            _hide_keys(tile, layout, is_key[b], scores)
                        _to_powers(size, scores, magnitude, totals[16:], bits[block])
                        vectors.weigh(
                            scores.ctypes.data, weight.ctypes.data, magnitude.ctypes.data, size * LANES,
                            totals.ctypes.data,
                        )  # fmt: skip
                        _combine(tile, layout, scores, v[b], out_lanes, deep, out_rows)
                    else:
                        _attend_linear(
                            tile, layout, lanes, rows, padded, k[b], v[b], weight, magnitude, scores, totals, out_lanes,
                            deep, out_rows,
                        )  # fmt: skip
                    for r in range(min(LANES, num_rows - tile * LANES)):
                        i = order[tile * LANES + r]
                        total = totals[r]
                        denominator[b, i] = total
                        factor = np.float32(1)
                        if normalize:
                            factor = 1 / total if total != 0 else np.float32(0)
                        for d in range(depth):
                            out[b, i, d] = out_rows[r * deep + d] * factor


@njit(error_model="numpy")
def _copy_gradients(tile, layout, normalize, grad, out, denominator, deep, rows, bare):
    """Gradients of the rows of a tile, [16, deep], divided by denominators; and ``bare``, those of the denominators."""
    order, num_rows = layout[0], layout[6]
    depth = grad.shape[1]
    for r in range(LANES):
        i = order[tile * LANES + r]
        factor, inner = np.float32(1), np.float32(0)
        if r >= num_rows - tile * LANES:
            factor = np.float32(0)
        elif normalize:
            factor = 1 / denominator[i] if denominator[i] != 0 else np.float32(0)
        for d in range(depth):
            rows[r * deep + d] = grad[i, d] * factor
            inner += rows[r * deep + d] * out[i, d]
        bare[r] = -inner if normalize else np.float32(0)


@njit(error_model="numpy")
def _find_targets(first, end, targets, num_keys, shift, out):
    """Targets of a tile, counted from the first key of a batch entry; those of shared keys are ``shift`` further."""
    for p in range(first, end):
        out[p - first] = targets[p] if targets[p] < num_keys else targets[p] + shift


def _backward(
    source, softmax, normalize, own, layout, packed, entries, features, q, k, v, is_key, grad, out, denominator, blocks,
    together, targets, scratch, bits, maps, grad_entries, grad_features, grad_q, grad_k, grad_v,
):  # fmt: skip
    """Gradients of everything; those of keys and values are rows of padded width, those of shared keys at the end."""
    order, starts, num_rows = layout[0], layout[1], layout[6]
    batch, num_keys, depth = v.shape
    width = q.shape[2]
    num_shared = grad_k.shape[0] // batch - num_keys
    padded, deep = (width + 15) // 16 * 16, (depth + 15) // 16 * 16
    for block in prange(blocks.shape[0] - 1):
        room, most = scratch[block], bits.shape[1]
        many = together * most
        weights, sizes = room[:many], room[many : 2 * many]
        grad_weights, grad_sizes = room[2 * many : 3 * many], room[3 * many : 4 * many]
        at = 4 * many
        scores, through = room[at : at + most], room[at + most : at + 2 * most]
        at += 2 * most
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
        bare = totals[:16]
        rows[:], grad_rows[:] = 0, 0
        for chunk in range(blocks[block], blocks[block + 1], together):
            end = min(chunk + together, blocks[block + 1])
            count = (starts[end] - starts[chunk]) * LANES
            if source == PACKED:
                weights = packed[0][starts[chunk] * LANES : starts[end] * LANES]
                sizes = packed[1][starts[chunk] * LANES : starts[end] * LANES] if own else weights
            else:
                fill(chunk, end, source, layout, entries, features, own_maps, inner_lanes, own, weights, sizes)
                if not own:
                    sizes = weights
            grad_weights[:count] = 0
            if own:
                grad_sizes[:count] = 0
            for b in range(batch):
                for tile in range(chunk, end):
                    first, size = (starts[tile] - starts[chunk]) * LANES, starts[tile + 1] - starts[tile]
                    weight, magnitude = weights[first:], sizes[first:]
                    _copy_rows(tile, order, q[b], padded, rows)
                    vectors.rows_to_lanes(rows.ctypes.data, padded, lanes.ctypes.data)
                    _copy_gradients(tile, layout, normalize, grad[b], out[b], denominator[b], deep, grad_rows, bare)
                    vectors.rows_to_lanes(grad_rows.ctypes.data, deep, grad_lanes.ctypes.data)
                    if softmax:
                        _score(tile, layout, lanes, rows, padded, k[b], scores)
                        if is_key.shape[0] > 0:
                            _hide_keys(tile, layout, is_key[b], scores)
                        _to_powers(size, scores, magnitude, totals[16:], bits[block])
                    shift = (batch - 1 - b) * num_keys + b * num_shared
                    _find_targets(starts[tile], starts[tile + 1], targets, num_keys, shift, bits[block])
                    _differentiate(
                        tile, layout, bits[block], softmax, own, lanes, rows, padded, grad_lanes, grad_rows, deep, k[b],
                        v[b], weight, magnitude, scores, through, bare, grad_weights[first:], grad_sizes[first:],
                        query_lanes, query_rows, grad_k[b * num_keys :], grad_v[b * num_keys :],
                    )  # fmt: skip
                    for r in range(min(LANES, num_rows - tile * LANES)):
                        i = order[tile * LANES + r]
                        for a in range(width):
                            grad_q[b, i, a] = query_rows[r * padded + a]
            for tile in range(chunk, end):
                first = (starts[tile] - starts[chunk]) * LANES
                if source == ENTRIES:
                    spread_entries(tile, order, num_rows, entries[0], entries[1], grad_weights[first:], grad_entries[0])
                    if own:
                        spread_entries(
                            tile, order, num_rows, entries[0], entries[1], grad_sizes[first:], grad_entries[1]
                        )
                elif source == FEATURES:
                    spread_features(
                        tile, layout, features, own_maps, inner_lanes, inner_grads, own, grad_weights[first:],
                        grad_sizes[first:], grad_features, block,
                    )  # fmt: skip


def _share_keys(blocks, starts, keys, num_keys, targets, shared):
    """Rows that the blocks of tiles add the gradients of keys to, so that no two blocks add to the same one.

    The first block that sees a key has the row of the key itself; the next ones have rows after those of all keys, each
    of which belongs to the key that ``shared`` says. Returns how many these are.
    """
    last, place, count = np.full(num_keys, -1, np.int32), np.empty(num_keys, np.int32), 0
    for block in range(blocks.shape[0] - 1):
        for p in range(starts[blocks[block]], starts[blocks[block + 1]]):
            j = keys[p]
            if last[j] != block:
                if last[j] < 0:
                    place[j] = j
                else:
                    place[j] = num_keys + count
                    shared[count] = j
                    count += 1
                last[j] = block
            targets[p] = place[j]
    return count


def _fold(shared, num_keys, batch, sums):
    """Add the rows of shared keys, which are behind those of all keys of the batch, to the rows of these keys."""
    pieces = sums.shape[1] // LANES
    for piece in prange(batch * pieces):
        b, at = piece // pieces, piece % pieces * LANES
        for p in range(shared.shape[0]):
            row = batch * num_keys + b * shared.shape[0] + p
            for a in range(at, at + LANES):
                sums[b * num_keys + shared[p], a] += sums[row, a]


share_kernel, fold_kernel = Kernel(_share_keys, threads=False), Kernel(_fold)
forward_kernel, backward_kernel = Kernel(_forward, fastmath=True), Kernel(_backward, fastmath=True)
