"""Attention, tile by tile."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit

from topomask.ops.backend import EXACT, BlockKernel
from topomask.ops.llvm import KEYS
from topomask.ops.pair_attention import LANES
from topomask.ops.quotient import smallest_total
from topomask.ops.tiles import row_vectors, vectors
from topomask.ops.tiles.powers import hide_keys, to_powers
from topomask.ops.tiles.records import Scratch
from topomask.ops.tiles.weights import numbering_of, weights_of

SMALLEST_TOTAL = np.float32(smallest_total(torch.float32))


@njit(inline="always", **EXACT)
def scratch_of(scratch, block):
    """Return the memory of one block, with rows set to 0: their padding is never written to."""
    own = Scratch(
        scratch.weights[block],
        scratch.magnitudes[block],
        scratch.scores[block],
        scratch.bits[block],
        scratch.query_rows[block],
        scratch.query_lanes[block],
        scratch.value_rows[block],
        scratch.value_lanes[block],
        scratch.totals[block],
        scratch.tops[block],
        scratch.caps[block],
        scratch.feature_lanes[block],
    )
    own.query_rows[:], own.value_rows[:] = 0, 0
    return own


@njit(**EXACT)
def load_queries(tile, tiles, q, scratch):
    """Load the queries of a tile as rows and as lanes."""
    width, padded_width = q.shape[1], scratch.query_rows.shape[0] // LANES
    rows = scratch.query_rows
    for r in range(LANES):
        i = tiles.order[tile * LANES + r]
        for a in range(width):
            rows[r * padded_width + a] = q[i, a]
    row_vectors.rows_to_lanes(rows.ctypes.data, padded_width, scratch.query_lanes.ctypes.data)


@njit(**EXACT)
def score(tile, tiles, k, scratch):
    """Compute products of the queries and keys of a tile, [keys, 16]; 0 for keys processed alone that are not seen."""
    width, padded_width = k.shape[1], scratch.query_rows.shape[0] // LANES
    start, num_full, num_keys = tiles.starts[tile], tiles.ends[tile], tiles.starts[tile + 1]
    num_full, num_keys = num_full - start, num_keys - start
    lanes, rows, scores = scratch.query_lanes.ctypes.data, scratch.query_rows.ctypes.data, scratch.scores.ctypes.data
    keys, k_at = tiles.keys.ctypes.data + 4 * start, k.ctypes.data
    for first in range(0, num_full, KEYS):
        these = keys + 4 * first
        vectors.dot_keys(lanes, k_at, these, width, scores + 4 * LANES * first, k_at, these, width)
    scratch.scores[num_full * LANES : num_keys * LANES] = 0
    for r in range(LANES):
        for p in range(tiles.rest_ptr[tile * LANES + r], tiles.rest_ptr[tile * LANES + r + 1]):
            j = np.int64(tiles.keys[start + tiles.rest[p]])
            product: np.float32 = row_vectors.dot_row(rows + 4 * r * padded_width, k_at + 4 * j * width, width)
            scratch.scores[tiles.rest[p] * LANES + r] = product


@njit(**EXACT)
def _attend_linear(tile, tiles, k, v, weights, magnitudes, scratch):
    """Compute the numerator [16, D'] and the denominator [16] of linear attention of a tile."""
    width, value_dim = k.shape[1], v.shape[1]
    padded_width = scratch.query_rows.shape[0] // LANES
    padded_value_dim = scratch.value_rows.shape[0] // LANES
    scratch.value_lanes[:], scratch.totals[:] = 0, 0
    lanes, rows, scores = scratch.query_lanes.ctypes.data, scratch.query_rows.ctypes.data, scratch.scores.ctypes.data
    out_lanes, out_rows = scratch.value_lanes.ctypes.data, scratch.value_rows.ctypes.data
    totals, k_at, v_at = scratch.totals.ctypes.data, k.ctypes.data, v.ctypes.data
    weights_at, magnitudes_at = weights.ctypes.data, magnitudes.ctypes.data
    keys, rest = tiles.keys.ctypes.data + 4 * tiles.starts[tile], tiles.rest.ctypes.data
    for first in range(0, tiles.ends[tile] - tiles.starts[tile], KEYS):
        at, these = 4 * LANES * first, keys + 4 * first
        vectors.weigh_keys(
            lanes, k_at, these, width, weights_at + at, magnitudes_at + at, scores, totals, v_at, value_dim
        )
        vectors.add_keys(scores, v_at, these, value_dim, out_lanes, k_at, width)
    row_vectors.lanes_to_rows(out_lanes, padded_value_dim, out_rows)
    for r in range(LANES):
        first, end = tiles.rest_ptr[tile * LANES + r], tiles.rest_ptr[tile * LANES + r + 1]
        scratch.totals[r] += row_vectors.attend_alone(
            rows + 4 * r * padded_width, k_at, v_at, width, value_dim, keys, rest + 4 * first, end - first,
            weights_at + 4 * r, magnitudes_at + 4 * r, out_rows + 4 * r * padded_value_dim,
        )  # fmt: skip


@njit(**EXACT)
def _combine_values(tile, tiles, v, scratch):
    """Sum score v[key] over keys, [16, D']."""
    value_dim, padded_value_dim = v.shape[1], scratch.value_rows.shape[0] // LANES
    scratch.value_lanes[:] = 0
    scores, v_at = scratch.scores.ctypes.data, v.ctypes.data
    out_lanes, out_rows = scratch.value_lanes.ctypes.data, scratch.value_rows.ctypes.data
    keys = tiles.keys.ctypes.data + 4 * tiles.starts[tile]
    for first in range(0, tiles.ends[tile] - tiles.starts[tile], KEYS):
        vectors.add_keys(scores + 4 * LANES * first, v_at, keys + 4 * first, value_dim, out_lanes, v_at, value_dim)
    row_vectors.lanes_to_rows(out_lanes, padded_value_dim, out_rows)
    for r in range(LANES):
        for p in range(tiles.rest_ptr[tile * LANES + r], tiles.rest_ptr[tile * LANES + r + 1]):
            j = np.int64(tiles.keys[tiles.starts[tile] + tiles.rest[p]])
            factor = scratch.scores[tiles.rest[p] * LANES + r]
            row_vectors.add_row(factor, v_at + 4 * j * value_dim, out_rows + 4 * r * padded_value_dim, value_dim)


@njit(**EXACT)
def score_as_powers(tile, item, tiles, tokens, magnitudes, scratch):
    """Compute the powers exp(score - shift) of a tile, for softmax attention."""
    score(tile, tiles, tokens.k[item], scratch)
    if tokens.is_key.shape[0] > 0:
        hide_keys(tile, tiles, tokens.is_key[item], scratch.scores)
    to_powers(tiles.starts[tile + 1] - tiles.starts[tile], magnitudes, scratch)


@njit(**EXACT)
def _attend_softmax(tile, item, tiles, tokens, weights, magnitudes, scratch):
    """Compute the numerator [16, D'] and the denominator [16] of softmax attention of a tile, up to a common factor."""
    count = (tiles.starts[tile + 1] - tiles.starts[tile]) * LANES
    score_as_powers(tile, item, tiles, tokens, magnitudes, scratch)
    vectors.weigh(
        scratch.scores.ctypes.data, weights.ctypes.data, magnitudes.ctypes.data, count, scratch.totals.ctypes.data
    )
    _combine_values(tile, tiles, tokens.v[item], scratch)


@njit(**EXACT)
def _write(tile, tiles, normalize, scratch, out, denominator):
    """Write the results of a tile to their rows."""
    padded_value_dim = scratch.value_rows.shape[0] // LANES
    for r in range(min(LANES, tiles.num_rows - tile * LANES)):
        i, total = tiles.order[tile * LANES + r], scratch.totals[r]
        denominator[i] = total
        factor = np.float32(1)
        if normalize:
            factor = np.float32(0) if abs(total) <= SMALLEST_TOTAL else 1 / total
        for d in range(out.shape[1]):
            out[i, d] = scratch.value_rows[r * padded_value_dim + d] * factor


def _forward(
    start_block, stop_block, tiles, num_heads, packed, entries, features, tokens, linear, softmax, options, schedule,
    scratch, numbering, out, denominator,
):  # fmt: skip
    """Attention [G, R, D] and its denominator [G, R].

    One of ``linear`` and ``softmax`` is True and the other None, whose branch Numba does not compile.
    """
    for block in range(start_block, stop_block):
        own, tables = scratch_of(scratch, block), numbering_of(numbering, block)
        first, last = schedule.blocks[block], schedule.blocks[block + 1]
        for chunk in range(first, last, schedule.together):
            end = min(chunk + schedule.together, last)
            for head in range(num_heads):
                weights, magnitudes = weights_of(
                    chunk, end, head, tiles, packed, entries, features, options.separate_magnitudes, tables, own
                )
                for item in range(head, tokens.q.shape[0], num_heads):
                    for tile in range(chunk, end):
                        at = (tiles.starts[tile] - tiles.starts[chunk]) * LANES
                        load_queries(tile, tiles, tokens.q[item], own)
                        if softmax is not None:
                            _attend_softmax(tile, item, tiles, tokens, weights[at:], magnitudes[at:], own)
                        if linear is not None:
                            k, v = tokens.k[item], tokens.v[item]
                            _attend_linear(tile, tiles, k, v, weights[at:], magnitudes[at:], own)
                        _write(tile, tiles, options.normalize, own, out[item], denominator[item])


forward_kernel = BlockKernel(_forward)
