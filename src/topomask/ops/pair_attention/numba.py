"""Attention over the entries of a sparse mask, compiled.

In float32, where rows have many entries, in tiles of 16 queries. Otherwise row by row, four neighbours at a time, so
that a query is read once for four keys. The backward pass goes over the rows, and keeps two numbers per entry; and then
over the columns, which collect the gradients of keys and values from these, so that no two threads write to the same.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from topomask.ops import segments, tiles
from topomask.ops.backend import FAST_MATH, Kernel, arrays, row_blocks
from topomask.ops.locality import row_order
from topomask.ops.pair_attention import MIN_ENTRIES_PER_ROW
from topomask.ops.pair_attention.reference import LARGEST_EXPONENT, LOWEST, MAX_EXPONENT
from topomask.ops.sparse_product import Pattern
from topomask.ops.tiles import vectors
from topomask.ops.tiles.layout import Layout, make_layout
from topomask.ops.tiles.vectors import LANES

_SAMPLED_TILES = 16

_layouts: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


@njit(fastmath=set(FAST_MATH), error_model="numpy")
def _score_row(first, end, columns, q, k, absolute, scores):
    """Scores of the entries of a row, [entries]; of absolute features where asked for."""
    zero = q.dtype.type(0)
    width = q.shape[0]
    p = first
    while p < end:
        # What is over is computed again with the last entry.
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


@njit(error_model="numpy")
def _to_powers(first, end, columns, sizes, is_key, scores):
    """exp(score - shift) in place, where the shift makes the largest power times size 1."""
    top, largest = LOWEST, 0.0
    for p in range(first, end):
        if is_key.shape[0] > 0 and not is_key[columns[p]]:
            scores[p - first] = LOWEST
        if sizes[p] != 0:
            top = max(top, scores[p - first] + np.log(abs(sizes[p])))
            largest = max(largest, abs(sizes[p]))
    if top < 0.9 * LOWEST:
        top = 0.0
    # The reference cuts exponents after it has brought the largest size to 1.
    cap = min(MAX_EXPONENT - np.log(largest), LARGEST_EXPONENT) if largest > 0 else 0.0
    for p in range(first, end):
        scores[p - first] = np.exp(min(scores[p - first] - top, cap))


@njit(fastmath=set(FAST_MATH), error_model="numpy")
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


def _forward(row_ptr, columns, values, sizes, q, k, v, is_key, softmax, absolute, normalize, most, starts, out, totals):
    """Attention [B, R, D] and its denominator [B, R]."""
    depth = v.shape[2]
    for block in prange(starts.shape[0] - 1):
        scores, others = np.empty(most, q.dtype), np.empty(most, q.dtype)
        for b in range(q.shape[0]):
            for i in range(starts[block], starts[block + 1]):
                first, end = row_ptr[i], row_ptr[i + 1]
                total = q.dtype.type(0)
                _score_row(first, end, columns, q[b, i], k[b], False, scores)
                if absolute:
                    _score_row(first, end, columns, q[b, i], k[b], True, others)
                elif softmax:
                    _to_powers(first, end, columns, sizes, is_key[b] if is_key.shape[0] > 0 else is_key[:0, 0], scores)
                for p in range(first, end):
                    total += (others[p - first] if absolute else scores[p - first]) * sizes[p]
                    scores[p - first] *= values[p]
                totals[b, i] = total
                factor = q.dtype.type(1)
                if normalize:
                    factor = 1 / total if total != 0 else q.dtype.type(0)
                row = out[b, i]
                _combine(first, end, columns, scores, first, v[b], row)
                for d in range(depth):
                    row[d] *= factor


def _forward_linear(row_ptr, columns, values, sizes, q, k, v, normalize, starts, out, totals):
    """As `_forward`, for linear attention in float32 with columns of 32 bits."""
    width, depth, rows, num_keys = q.shape[2], v.shape[2], q.shape[1], k.shape[1]
    q_at, k_at, v_at, out_at = q.ctypes.data, k.ctypes.data, v.ctypes.data, out.ctypes.data
    column, value, size = columns.ctypes.data, values.ctypes.data, sizes.ctypes.data
    for block in prange(starts.shape[0] - 1):
        for b in range(q.shape[0]):
            k_here, v_here = k_at + 4 * b * num_keys * width, v_at + 4 * b * num_keys * depth
            for i in range(starts[block], starts[block + 1]):
                first, at = row_ptr[i], b * rows + i
                for d in range(depth):
                    out[b, i, d] = 0
                total: np.float32 = vectors.attend_row(
                    q_at + 4 * at * width, k_here, v_here, width, depth, column + 4 * first, row_ptr[i + 1] - first,
                    value + 4 * first, size + 4 * first, out_at + 4 * at * depth,
                )  # fmt: skip
                totals[b, i] = total
                if normalize:
                    factor = 1 / total if total != 0 else np.float32(0)
                    for d in range(depth):
                        out[b, i, d] *= factor


def _backward_rows(
    row_ptr, columns, values, sizes, own, q, k, v, is_key, softmax, absolute, normalize, most, grad, out, totals,
    starts, grad_values, grad_sizes, grad_q, by_key, by_size, by_value,
):  # fmt: skip
    """Gradients of values, sizes and queries; and per entry [B, P] what its query and its gradient are weighed by in
    the gradients of its key, of the size of its key for absolute features, and of its value.
    """
    width, depth = q.shape[2], v.shape[2]
    for block in prange(starts.shape[0] - 1):
        scores, others, pulls = np.empty(most, q.dtype), np.empty(most, q.dtype), np.empty(most, q.dtype)
        pulled = np.empty(depth, q.dtype)
        for b in range(q.shape[0]):
            for i in range(starts[block], starts[block + 1]):
                first, end = row_ptr[i], row_ptr[i + 1]
                factor, push = q.dtype.type(1), q.dtype.type(0)
                if normalize:
                    factor = 1 / totals[b, i] if totals[b, i] != 0 else q.dtype.type(0)
                for d in range(depth):
                    pulled[d] = grad[b, i, d] * factor
                    push -= pulled[d] * out[b, i, d]
                if not normalize:
                    push = q.dtype.type(0)
                _score_row(first, end, columns, q[b, i], k[b], False, scores)
                if absolute:
                    _score_row(first, end, columns, q[b, i], k[b], True, others)
                elif softmax:
                    _to_powers(first, end, columns, sizes, is_key[b] if is_key.shape[0] > 0 else is_key[:0, 0], scores)
                _score_row(first, end, columns, pulled, v[b], False, pulls)
                for p in range(first, end):
                    s, pull = scores[p - first], pulls[p - first]
                    t = others[p - first] if absolute else s
                    grad_values[p] += s * pull if own else s * pull + t * push
                    if own:
                        grad_sizes[p] += t * push
                    through, bare = values[p] * pull, sizes[p] * push
                    if absolute:
                        by_key[b, p], by_size[b, p] = through, bare
                    else:
                        by_key[b, p] = (through + bare) * s if softmax else through + bare
                    by_value[b, p] = values[p] * s * factor
                _combine(first, end, columns, by_key[b], 0, k[b], grad_q[b, i])
                if absolute:
                    for p in range(first, end):
                        j, bare = columns[p], by_size[b, p]
                        for a in range(width):
                            grad_q[b, i, a] += bare * np.sign(q[b, i, a]) * abs(k[b, j, a])


def _backward_columns(
    column_ptr, rows, order, q, k, grad, absolute, most, starts, by_key, by_size, by_value, grad_k, grad_v
):
    """Gradients of keys and values: every one collects what its entries say."""
    width = q.shape[2]
    for block in prange(starts.shape[0] - 1):
        weights = np.empty(most, q.dtype)
        for b in range(q.shape[0]):
            for j in range(starts[block], starts[block + 1]):
                first, end = column_ptr[j], column_ptr[j + 1]
                for p in range(first, end):
                    weights[p - first] = by_value[b, order[p]]
                _combine(first, end, rows, weights, first, grad[b], grad_v[b, j])
                for p in range(first, end):
                    weights[p - first] = by_key[b, order[p]]
                _combine(first, end, rows, weights, first, q[b], grad_k[b, j])
                if absolute:
                    for p in range(first, end):
                        i, bare = rows[p], by_size[b, order[p]]
                        for a in range(width):
                            grad_k[b, j, a] += bare * abs(q[b, i, a]) * np.sign(k[b, j, a])


_forward_linear_kernel = Kernel(_forward_linear, fastmath=True)
_forward_kernel = Kernel(_forward, fastmath=True)
_rows_kernel, _columns_kernel = Kernel(_backward_rows, fastmath=True), Kernel(_backward_columns, fastmath=True)


def _layout(pattern: Pattern, q: Tensor, absolute: bool) -> tuple[Layout, Tensor] | None:
    """Tiles of a pattern, kept as long as the pattern is; None where going row by row is better."""
    columns = pattern.columns
    if q.dtype != torch.float32 or absolute or len(columns) < MIN_ENTRIES_PER_ROW * q.shape[1]:
        return None
    if columns not in _layouts:
        order = row_order(pattern.row_ptr, columns, pattern.shape[1])
        _layouts[columns] = make_layout(pattern.row_ptr, columns, pattern.shape[1], order=order)
    return _layouts[columns]


def estimate_tiles(query: Pattern, key: Pattern | None) -> tuple[int, int]:
    """Keys that tiles take with all lanes, and pairs that they take alone, from a sample of tiles."""
    num_rows, num_keys = query.shape[0], query.shape[1] if key is None else key.shape[0]
    if not num_rows:
        return 0, 0
    order = row_order(query.row_ptr, query.columns, query.shape[1])
    order = torch.arange(num_rows, device="cpu") if order is None else order.long()
    num_tiles = -(-num_rows // LANES)
    chosen = torch.linspace(0, num_tiles - 1, min(_SAMPLED_TILES, num_tiles), device="cpu").round().long()
    rows = order[(chosen[:, None] * LANES + torch.arange(LANES, device="cpu")).flatten().clamp(max=num_rows - 1)]
    counts = query.row_ptr.diff()[rows]
    columns = query.columns[segments.ranges(query.row_ptr[rows], counts)]
    by_column = (None, None) if key is None else (key.column_ptr, key.rows)
    layout, _ = make_layout(segments.pointers(counts), columns, num_keys, *by_column)
    scale = num_tiles / len(chosen)
    return round(scale * int((layout.ends - layout.starts[:-1]).sum())), round(scale * len(layout.rest))


def _longest(row_ptr: Tensor) -> int:
    return int(row_ptr.diff().max()) if len(row_ptr) > 1 else 0


def pair_attention(
    pattern: Pattern,
    values: Tensor,
    magnitudes: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_key: Tensor,
    softmax: bool,
    absolute: bool,
    normalize: bool,
) -> tuple[Tensor, Tensor]:
    """Attention [B, R, D] and its denominator [B, R]."""
    found = _layout(pattern, q, absolute)
    if found is not None:
        layout, slots = found
        source = tiles.from_entries(pattern.row_ptr, slots, values, magnitudes)
        return tiles.forward(layout, source, q, k, v, is_key, softmax, normalize)
    out, totals = q.new_empty(*q.shape[:2], v.shape[2]), q.new_empty(q.shape[:2])
    sizes = magnitudes if len(magnitudes) else values
    if q.dtype == torch.float32 and pattern.columns.dtype == torch.int32 and not softmax and not absolute:
        inputs = arrays(pattern.row_ptr, pattern.columns, values, sizes, q, k, v)
        _forward_linear_kernel(*inputs, normalize, row_blocks(pattern.row_ptr), *arrays(out, totals))
        return out, totals
    _forward_kernel(
        *arrays(pattern.row_ptr, pattern.columns, values, sizes, q, k, v, is_key),
        softmax,
        absolute,
        normalize,
        _longest(pattern.row_ptr),
        row_blocks(pattern.row_ptr),
        *arrays(out, totals),
    )
    return out, totals


def pair_attention_backward(
    grad: Tensor,
    out: Tensor,
    denominator: Tensor,
    pattern: Pattern,
    values: Tensor,
    magnitudes: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_key: Tensor,
    softmax: bool,
    absolute: bool,
    normalize: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients in values, magnitudes, q, k and v."""
    found = _layout(pattern, q, absolute)
    if found is not None:
        layout, slots = found
        source = tiles.from_entries(pattern.row_ptr, slots, values, magnitudes)
        (grad_values, grad_magnitudes), grad_q, grad_k, grad_v = tiles.backward(
            layout, source, q, k, v, is_key, softmax, normalize, grad, out, denominator
        )
        return grad_values, grad_magnitudes, grad_q, grad_k, grad_v
    own = len(magnitudes) > 0
    grad_values, grad_magnitudes = (torch.zeros_like(x) for x in (values, magnitudes))
    grad_q, grad_k, grad_v = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    by_key, by_value = (q.new_empty(len(q), len(values)) for _ in range(2))
    weights = arrays(by_key, by_key.new_empty(by_key.shape if absolute else (0, 0)), by_value)
    inputs = arrays(q, k, grad)
    _rows_kernel(
        *arrays(pattern.row_ptr, pattern.columns, values, magnitudes if own else values),
        own,
        *inputs[:2],
        *arrays(v, is_key),
        softmax,
        absolute,
        normalize,
        _longest(pattern.row_ptr),
        inputs[2],
        *arrays(out, denominator),
        row_blocks(pattern.row_ptr),
        *arrays(grad_values, grad_magnitudes, grad_q),
        *weights,
    )
    _columns_kernel(
        *arrays(pattern.column_ptr, pattern.rows, pattern.order),
        *inputs,
        absolute,
        _longest(pattern.column_ptr),
        row_blocks(pattern.column_ptr),
        *weights,
        *arrays(grad_k, grad_v),
    )
    return grad_values, grad_magnitudes, grad_q, grad_k, grad_v
