"""Attention row by row, four neighbours at a time, so that a query is read once for four keys.

The backward pass goes over the rows and stores two numbers per entry; then it goes over the columns, which collect the
gradients of keys and values from these, so that no two threads write to the same memory.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from topomask.ops.backend import ALLOCATING, EXACT, FAST, BlockKernel
from topomask.ops.pair_attention import LOWEST, MAX_EXPONENT
from topomask.ops.tiles import row_vectors


class Entries(NamedTuple):
    """Entries of a pattern by row, [V, P]; magnitudes are the values if they are not separate."""

    row_ptr: np.ndarray  # [R + 1]
    columns: np.ndarray  # [P]
    values: np.ndarray
    magnitudes: np.ndarray


class Columns(NamedTuple):
    """A pattern by column."""

    column_ptr: np.ndarray  # [N + 1]
    rows: np.ndarray  # [P]
    order: np.ndarray  # [P], place in the row order


class Options(NamedTuple):
    """How to attend."""

    softmax: bool
    absolute: bool
    normalize: bool
    separate_magnitudes: bool
    largest_exponent: float
    smallest_total: float


class Slopes(NamedTuple):
    """Factors of queries, and of gradients of the result, in the gradients of keys and values, [G, P]."""

    by_score: np.ndarray
    by_absolute_score: np.ndarray  # of absolute features; empty if they are not used
    by_value: np.ndarray


@njit(**FAST)
def _score_row(first, end, columns, q, k, absolute, scores):
    """Compute the scores of the entries of a row, [entries]; of absolute features if asked for."""
    zero = q.dtype.type(0)
    width = q.shape[0]
    p = first
    while p < end:
        # Beyond the end, the last entry is computed again.
        j0, j1 = columns[p], columns[min(p + 1, end - 1)]
        j2, j3 = columns[min(p + 2, end - 1)], columns[min(p + 3, end - 1)]
        s0, s1, s2, s3 = zero, zero, zero, zero
        if absolute:
            for a in range(width):
                x = abs(q[a])
                s0 += x * abs(k[j0, a])
                s1 += x * abs(k[j1, a])
                s2 += x * abs(k[j2, a])
                s3 += x * abs(k[j3, a])
        else:
            for a in range(width):
                x = q[a]
                s0 += x * k[j0, a]
                s1 += x * k[j1, a]
                s2 += x * k[j2, a]
                s3 += x * k[j3, a]
        scores[p - first] = s0
        if p + 1 < end:
            scores[p + 1 - first] = s1
        if p + 2 < end:
            scores[p + 2 - first] = s2
        if p + 3 < end:
            scores[p + 3 - first] = s3
        p += 4


@njit(**EXACT)
def _to_powers(first, end, columns, magnitudes, is_key, largest_exponent, scores):
    """Replace scores with exp(score - shift), where the shift makes the largest power times magnitude 1."""
    top, largest = LOWEST, LOWEST
    for p in range(first, end):
        if is_key.shape[0] > 0 and not is_key[columns[p]]:
            # Padding is ignored, whatever its magnitude.
            scores[p - first] = LOWEST
        elif magnitudes[p] != 0:
            log = np.log(abs(magnitudes[p]))
            top = max(top, scores[p - first] + max(log, -0.5 * largest_exponent))
            largest = max(largest, log)
    if top < 0.9 * LOWEST:
        top = 0.0
    cap = min(MAX_EXPONENT - largest, 0.5 * largest_exponent)
    for p in range(first, end):
        exponent = scores[p - first] - top
        scores[p - first] = np.exp(min(exponent, cap) if magnitudes[p] == 0 else exponent)


@njit(**FAST)
def _combine(first, end, places, weights, shift, x, out):
    """out[:] = sum of weights[p - shift] x[places[p]] over first <= p < end, four at a time."""
    width = out.shape[0]
    for a in range(width):
        out[a] = 0
    p = first
    while p + 4 <= end:
        j0, j1, j2, j3 = places[p], places[p + 1], places[p + 2], places[p + 3]
        w0, w1 = weights[p - shift], weights[p + 1 - shift]
        w2, w3 = weights[p + 2 - shift], weights[p + 3 - shift]
        for a in range(width):
            out[a] += w0 * x[j0, a] + w1 * x[j1, a] + w2 * x[j2, a] + w3 * x[j3, a]
        p += 4
    for rest in range(p, end):
        j, w = places[rest], weights[rest - shift]
        for a in range(width):
            out[a] += w * x[j, a]


@njit(**ALLOCATING)
def _keys_of(tokens, item):
    """Return which keys of an item are not padding; empty if there is no padding."""
    return tokens.is_key[item] if tokens.is_key.shape[0] > 0 else tokens.is_key[:0, 0]


def _forward(start_block, stop_block, entries, tokens, options, max_entries, starts, out, totals):
    """Attention [G, R, D] and its denominator [G, R]."""
    for block in range(start_block, stop_block):
        row_ptr, columns = entries.row_ptr, entries.columns
        num_heads, value_dim = entries.values.shape[0], tokens.v.shape[2]
        one, zero = tokens.q.dtype.type(1), tokens.q.dtype.type(0)
        scores, absolute_scores = np.empty(max_entries, tokens.q.dtype), np.empty(max_entries, tokens.q.dtype)
        for item in range(tokens.q.shape[0]):
            values, magnitudes = entries.values[item % num_heads], entries.magnitudes[item % num_heads]
            q, k, v = tokens.q[item], tokens.k[item], tokens.v[item]
            for i in range(starts[block], starts[block + 1]):
                first, end = row_ptr[i], row_ptr[i + 1]
                total = zero
                _score_row(first, end, columns, q[i], k, False, scores)
                if options.absolute:
                    _score_row(first, end, columns, q[i], k, True, absolute_scores)
                elif options.softmax:
                    _to_powers(
                        first, end, columns, magnitudes, _keys_of(tokens, item), options.largest_exponent, scores
                    )
                for p in range(first, end):
                    total += (absolute_scores[p - first] if options.absolute else scores[p - first]) * magnitudes[p]
                    scores[p - first] *= values[p]
                totals[item, i] = total
                factor = one
                if options.normalize:
                    factor = zero if abs(total) <= options.smallest_total else one / total
                row = out[item, i]
                _combine(first, end, columns, scores, first, v, row)
                for d in range(value_dim):
                    row[d] *= factor


def _forward_linear(start_block, stop_block, entries, tokens, options, starts, out, totals):
    """As `_forward`, for linear attention in float32 with 32-bit columns."""
    row_ptr, num_heads, num_entries = entries.row_ptr, entries.values.shape[0], entries.values.shape[1]
    batch, num_rows, width = tokens.q.shape
    num_keys, value_dim = tokens.v.shape[1], tokens.v.shape[2]
    q_at, k_at, v_at = tokens.q.ctypes.data, tokens.k.ctypes.data, tokens.v.ctypes.data
    out_at, columns_at = out.ctypes.data, entries.columns.ctypes.data
    values_at, magnitudes_at = entries.values.ctypes.data, entries.magnitudes.ctypes.data
    for block in range(start_block, stop_block):
        for item in range(batch):
            head_at = 4 * (item % num_heads) * num_entries
            k_here, v_here = k_at + 4 * item * num_keys * width, v_at + 4 * item * num_keys * value_dim
            for i in range(starts[block], starts[block + 1]):
                first, row = row_ptr[i], item * num_rows + i
                for d in range(value_dim):
                    out[item, i, d] = 0
                total: np.float32 = row_vectors.attend_row(
                    q_at + 4 * row * width, k_here, v_here, width, value_dim, columns_at + 4 * first,
                    row_ptr[i + 1] - first, values_at + head_at + 4 * first, magnitudes_at + head_at + 4 * first,
                    out_at + 4 * row * value_dim,
                )  # fmt: skip
                totals[item, i] = total
                if options.normalize:
                    factor = np.float32(0) if abs(total) <= options.smallest_total else 1 / total
                    for d in range(value_dim):
                        out[item, i, d] *= factor


def _backward_rows(
    start_block,
    stop_block,
    entries,
    tokens,
    options,
    max_entries,
    starts,
    grad,
    out,
    totals,
    grad_values,
    grad_magnitudes,
    grad_q,
    slopes,
):
    """Compute gradients of values, magnitudes [V, P] and queries, and the slopes that those of keys and values need."""
    for block in range(start_block, stop_block):
        row_ptr, columns = entries.row_ptr, entries.columns
        num_heads, dtype = entries.values.shape[0], tokens.q.dtype
        width, value_dim = tokens.q.shape[2], tokens.v.shape[2]
        one, zero = tokens.q.dtype.type(1), tokens.q.dtype.type(0)
        scores, absolute_scores = np.empty(max_entries, dtype), np.empty(max_entries, dtype)
        by_values, by_numerator = np.empty(max_entries, dtype), np.empty(value_dim, dtype)
        for item in range(tokens.q.shape[0]):
            head = item % num_heads
            values, magnitudes = entries.values[head], entries.magnitudes[head]
            q, k, v = tokens.q[item], tokens.k[item], tokens.v[item]
            by_score, by_value = slopes.by_score[item], slopes.by_value[item]
            for i in range(starts[block], starts[block + 1]):
                first, end = row_ptr[i], row_ptr[i + 1]
                factor, by_total = one, zero
                if options.normalize:
                    factor = zero if abs(totals[item, i]) <= options.smallest_total else one / totals[item, i]
                for d in range(value_dim):
                    by_numerator[d] = grad[item, i, d] * factor
                    by_total -= by_numerator[d] * out[item, i, d]
                if not options.normalize:
                    by_total = zero
                _score_row(first, end, columns, q[i], k, False, scores)
                if options.absolute:
                    _score_row(first, end, columns, q[i], k, True, absolute_scores)
                elif options.softmax:
                    _to_powers(
                        first, end, columns, magnitudes, _keys_of(tokens, item), options.largest_exponent, scores
                    )
                _score_row(first, end, columns, by_numerator, v, False, by_values)
                for p in range(first, end):
                    score, slope = scores[p - first], by_values[p - first]
                    total_score = absolute_scores[p - first] if options.absolute else score
                    if options.separate_magnitudes:
                        grad_values[head, p] += score * slope
                        grad_magnitudes[head, p] += total_score * by_total
                    else:
                        grad_values[head, p] += score * slope + total_score * by_total
                    through_value, through_total = values[p] * slope, magnitudes[p] * by_total
                    if options.absolute:
                        by_score[p], slopes.by_absolute_score[item, p] = through_value, through_total
                    elif options.softmax:
                        by_score[p] = (through_value + through_total) * score
                    else:
                        by_score[p] = through_value + through_total
                    by_value[p] = values[p] * score * factor
                _combine(first, end, columns, by_score, 0, k, grad_q[item, i])
                if options.absolute:
                    for p in range(first, end):
                        j, slope = columns[p], slopes.by_absolute_score[item, p]
                        for a in range(width):
                            grad_q[item, i, a] += slope * np.sign(q[i, a]) * abs(k[j, a])


def _backward_columns(
    start_block, stop_block, by_column, tokens, absolute, max_entries, starts, grad, slopes, grad_k, grad_v
):
    """Compute gradients of keys and values: each adds up the contributions of its entries."""
    column_ptr, rows, order = by_column
    width = tokens.q.shape[2]
    for block in range(start_block, stop_block):
        weights = np.empty(max_entries, tokens.q.dtype)
        for item in range(tokens.q.shape[0]):
            q, k = tokens.q[item], tokens.k[item]
            for j in range(starts[block], starts[block + 1]):
                first, end = column_ptr[j], column_ptr[j + 1]
                for p in range(first, end):
                    weights[p - first] = slopes.by_value[item, order[p]]
                _combine(first, end, rows, weights, first, grad[item], grad_v[item, j])
                for p in range(first, end):
                    weights[p - first] = slopes.by_score[item, order[p]]
                _combine(first, end, rows, weights, first, q, grad_k[item, j])
                if absolute:
                    for p in range(first, end):
                        i, slope = rows[p], slopes.by_absolute_score[item, order[p]]
                        for a in range(width):
                            grad_k[item, j, a] += slope * abs(q[i, a]) * np.sign(k[j, a])


forward_kernel, forward_linear_kernel = (
    BlockKernel(_forward, fastmath=True, allocates=True),
    BlockKernel(_forward_linear, fastmath=True),
)
rows_kernel = BlockKernel(_backward_rows, fastmath=True, allocates=True)
columns_kernel = BlockKernel(_backward_columns, fastmath=True, allocates=True)
