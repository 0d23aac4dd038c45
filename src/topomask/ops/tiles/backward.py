"""Gradients of attention, tile by tile."""

from __future__ import annotations

import numpy as np
from numba import njit

from topomask.ops.backend import EXACT, BlockKernel
from topomask.ops.llvm import KEYS
from topomask.ops.pair_attention import LANES
from topomask.ops.tiles import row_vectors, vectors
from topomask.ops.tiles.forward import SMALLEST_TOTAL, load_queries, score_as_powers, scratch_of
from topomask.ops.tiles.records import BackwardScratch
from topomask.ops.tiles.weights import numbering_of, spread, weights_of


@njit(inline="always", **EXACT)
def _backward_scratch_of(scratch, block):
    """Return the memory of one block."""
    return BackwardScratch(
        scratch.grad_weights[block],
        scratch.grad_magnitudes[block],
        scratch.value_slopes[block],
        scratch.grad_query_rows[block],
        scratch.grad_query_lanes[block],
        scratch.targets[block],
        scratch.grad_feature_lanes[block],
    )


@njit(**EXACT)
def _load_gradients(tile, item, tiles, normalize, results, scratch):
    """Load the gradients of the numerators of a tile, as rows and lanes, and of its denominators, into ``totals``."""
    grad, out, denominator = results.grad[item], results.out[item], results.denominator[item]
    value_dim, padded_value_dim = grad.shape[1], scratch.value_rows.shape[0] // LANES
    rows = scratch.value_rows
    for r in range(LANES):
        i = tiles.order[tile * LANES + r]
        factor, inner = np.float32(1), np.float32(0)
        if r >= tiles.num_rows - tile * LANES:
            factor = np.float32(0)
        elif normalize:
            factor = np.float32(0) if abs(denominator[i]) <= SMALLEST_TOTAL else 1 / denominator[i]
        for d in range(value_dim):
            rows[r * padded_value_dim + d] = grad[i, d] * factor
            inner += rows[r * padded_value_dim + d] * out[i, d]
        scratch.totals[r] = -inner if normalize else np.float32(0)
    row_vectors.rows_to_lanes(rows.ctypes.data, padded_value_dim, scratch.value_lanes.ctypes.data)


@njit(**EXACT)
def _find_targets(tile, tiles, targets, num_keys, shift, out):
    """Find the targets of a tile, counted from the first key of an item; those of shared keys are shifted."""
    first = tiles.starts[tile]
    for p in range(first, tiles.starts[tile + 1]):
        out[p - first] = targets[p] if targets[p] < num_keys else targets[p] + shift


@njit(**EXACT)
def _differentiate_together(
    tile, tiles, linear, softmax, options, k, v, weights, magnitudes, grad_weights, grad_magnitudes, grad_k, grad_v,
    scratch, backward,
):  # fmt: skip
    """Compute gradients through the keys that a tile processes in all lanes."""
    width, value_dim = k.shape[1], v.shape[1]
    padded_width, padded_value_dim = grad_k.shape[1], grad_v.shape[1]
    lanes, rows, scores = scratch.query_lanes.ctypes.data, scratch.query_rows.ctypes.data, scratch.scores.ctypes.data
    value_lanes, value_rows = scratch.value_lanes.ctypes.data, scratch.value_rows.ctypes.data
    total_slopes, value_slopes = scratch.totals.ctypes.data, backward.value_slopes.ctypes.data
    k_at, v_at, to_k, to_v = k.ctypes.data, v.ctypes.data, grad_k.ctypes.data, grad_v.ctypes.data
    to_query, targets = backward.grad_query_lanes.ctypes.data, backward.targets.ctypes.data
    weights_at, magnitudes_at = weights.ctypes.data, magnitudes.ctypes.data
    to_weights, to_magnitudes = grad_weights.ctypes.data, grad_magnitudes.ctypes.data
    keys = tiles.keys.ctypes.data + 4 * tiles.starts[tile]
    is_softmax, separate = np.int64(softmax is not None), np.int64(options.separate_magnitudes)
    for first in range(0, tiles.ends[tile] - tiles.starts[tile], KEYS):
        at, these, those = 4 * LANES * first, keys + 4 * first, targets + 4 * first
        if linear is not None:
            vectors.dot_keys(lanes, k_at, these, width, scores + at, v_at, these, value_dim)
        vectors.dot_keys(value_lanes, v_at, these, value_dim, value_slopes, to_v, those, padded_value_dim)
        vectors.differentiate_keys(
            is_softmax, separate, scores + at, value_slopes, weights_at + at, magnitudes_at + at, total_slopes,
            to_weights + at, to_magnitudes + at,
        )  # fmt: skip
        vectors.add_rows(value_slopes, value_rows, padded_value_dim, to_v, those, to_k, those, padded_width)
        # The next keys are prefetched twice, here and below: this is the last use of the gradients of these keys.
        vectors.add_rows(scores + at, rows, padded_width, to_k, those, k_at, these + 4 * KEYS, width)
        vectors.add_keys(scores + at, k_at, these, width, to_query, k_at, width)


@njit(**EXACT)
def _differentiate_alone(
    tile, tiles, linear, softmax, options, k, v, weights, magnitudes, grad_weights, grad_magnitudes, grad_k, grad_v,
    scratch, backward,
):  # fmt: skip
    """Compute gradients through the pairs that a tile processes alone."""
    width, value_dim = k.shape[1], v.shape[1]
    padded_width, padded_value_dim = grad_k.shape[1], grad_v.shape[1]
    k_at, v_at, to_k, to_v = k.ctypes.data, v.ctypes.data, grad_k.ctypes.data, grad_v.ctypes.data
    for r in range(LANES):
        row = scratch.query_rows.ctypes.data + 4 * r * padded_width
        to_query = backward.grad_query_rows.ctypes.data + 4 * r * padded_width
        value_row = scratch.value_rows.ctypes.data + 4 * r * padded_value_dim
        by_total = scratch.totals[r]
        for p in range(tiles.rest_ptr[tile * LANES + r], tiles.rest_ptr[tile * LANES + r + 1]):
            j, target = (
                np.int64(tiles.keys[tiles.starts[tile] + tiles.rest[p]]),
                np.int64(backward.targets[tiles.rest[p]]),
            )
            x = tiles.rest[p] * LANES + r
            product = scratch.scores[x]
            if linear is not None:
                product = row_vectors.dot_row(row, k_at + 4 * j * width, width)
            by_value: np.float32 = row_vectors.dot_row(value_row, v_at + 4 * j * value_dim, value_dim)
            if options.separate_magnitudes:
                grad_weights[x] += product * by_value
                grad_magnitudes[x] += product * by_total
            else:
                grad_weights[x] += product * (by_value + by_total)
            slope = weights[x] * by_value + magnitudes[x] * by_total
            if softmax is not None:
                slope *= product
            row_vectors.add_row(product * weights[x], value_row, to_v + 4 * target * padded_value_dim, value_dim)
            row_vectors.add_row(slope, row, to_k + 4 * target * padded_width, width)
            row_vectors.add_row(slope, k_at + 4 * j * width, to_query, width)


@njit(**EXACT)
def _write(tile, tiles, rows, grad_q):
    """Write the gradients of the queries of a tile to their rows."""
    width, padded_width = grad_q.shape[1], rows.shape[0] // LANES
    for r in range(min(LANES, tiles.num_rows - tile * LANES)):
        i = tiles.order[tile * LANES + r]
        for a in range(width):
            grad_q[i, a] = rows[r * padded_width + a]


@njit(inline="always", **EXACT)
def _differentiate_tile(
    tile, at, item, tiles, tokens, linear, softmax, options, results, weights, magnitudes, targets, grads, scratch,
    backward,
):  # fmt: skip
    """Compute the gradients of a tile and an item; the weights of the tile begin at ``at``."""
    batch, num_keys = tokens.k.shape[0], tokens.k.shape[1]
    k, v = tokens.k[item], tokens.v[item]
    to_k, to_v = grads.k[item * num_keys :], grads.v[item * num_keys :]
    load_queries(tile, tiles, tokens.q[item], scratch)
    _load_gradients(tile, item, tiles, options.normalize, results, scratch)
    if softmax is not None:
        score_as_powers(tile, item, tiles, tokens, magnitudes[at:], scratch)
    shift = (batch - 1 - item) * num_keys + item * (grads.k.shape[0] // batch - num_keys)
    _find_targets(tile, tiles, targets, num_keys, shift, backward.targets)
    backward.grad_query_lanes[:] = 0
    _differentiate_together(
        tile, tiles, linear, softmax, options, k, v, weights[at:], magnitudes[at:], backward.grad_weights[at:],
        backward.grad_magnitudes[at:], to_k, to_v, scratch, backward,
    )  # fmt: skip
    to_rows = backward.grad_query_rows.ctypes.data
    row_vectors.lanes_to_rows(backward.grad_query_lanes.ctypes.data, grads.k.shape[1], to_rows)
    _differentiate_alone(
        tile, tiles, linear, softmax, options, k, v, weights[at:], magnitudes[at:], backward.grad_weights[at:],
        backward.grad_magnitudes[at:], to_k, to_v, scratch, backward,
    )  # fmt: skip
    _write(tile, tiles, backward.grad_query_rows, grads.q[item])


def _backward(
    start_block, stop_block, tiles, num_heads, packed, entries, features, tokens, linear, softmax, options,
    wants_source, results, schedule, scratch, backward_scratch, numbering, source_grads, grads,
):  # fmt: skip
    """Compute gradients of tokens, and of the source of weights if wanted; other arguments as in `_forward`."""
    for block in range(start_block, stop_block):
        own, more = scratch_of(scratch, block), _backward_scratch_of(backward_scratch, block)
        tables, separate = numbering_of(numbering, block), options.separate_magnitudes
        first, last = schedule.blocks[block], schedule.blocks[block + 1]
        for chunk in range(first, last, schedule.together):
            end = min(chunk + schedule.together, last)
            count = (tiles.starts[end] - tiles.starts[chunk]) * LANES
            for head in range(num_heads):
                weights, magnitudes = weights_of(
                    chunk, end, head, tiles, packed, entries, features, separate, tables, own
                )
                more.grad_weights[:count] = 0
                if separate:
                    more.grad_magnitudes[:count] = 0
                for item in range(head, tokens.q.shape[0], num_heads):
                    for tile in range(chunk, end):
                        at = (tiles.starts[tile] - tiles.starts[chunk]) * LANES
                        _differentiate_tile(
                            tile, at, item, tiles, tokens, linear, softmax, options, results, weights, magnitudes,
                            schedule.targets, grads, own, more,
                        )  # fmt: skip
                if wants_source:
                    spread(chunk, end, head, block, tiles, entries, features, separate, tables, own, more, source_grads)


def _fold(start_block, stop_block, shared, num_keys, batch, sums):
    """Add the rows of shared keys, which come after those of all keys of the batch, to the rows of these keys."""
    pieces = sums.shape[1] // LANES
    for piece in range(start_block, stop_block):
        b, at = piece // pieces, piece % pieces * LANES
        for p in range(shared.shape[0]):
            row = batch * num_keys + b * shared.shape[0] + p
            for a in range(at, at + LANES):
                sums[b * num_keys + shared[p], a] += sums[row, a]


backward_kernel, fold_kernel = BlockKernel(_backward), BlockKernel(_fold)
