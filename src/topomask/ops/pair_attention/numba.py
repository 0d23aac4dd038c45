"""Linear attention over the entries of a sparse mask, compiled.

A row takes four neighbours at a time, so that a query is read once for four keys. The backward pass gives every thread
a block of rows with about as many entries, and gradients of keys and values of its own, which are added up at the end.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import prange
from torch import Tensor

from topomask.ops.backend import Kernel, arrays, row_blocks
from topomask.ops.pair_attention import tiles as _tiles


def _forward(row_ptr, columns, values, magnitudes, q, k, v, absolute, first_row, numerator, denominator):
    """Numerator [B, R, D] and denominator [B, R] from ``first_row`` on; ``magnitudes`` is empty for ``values``."""
    batch, rows, width = q.shape
    rows -= first_row
    depth = v.shape[2]
    own = magnitudes.shape[0] > 0
    for task in prange(batch * rows):
        b, i = task // rows, first_row + task % rows
        zero = q.dtype.type(0)
        total = zero
        out = numerator[b, i]
        for d in range(depth):
            out[d] = zero
        p, end = row_ptr[i], row_ptr[i + 1]
        while p + 4 <= end:
            j0, j1, j2, j3 = columns[p], columns[p + 1], columns[p + 2], columns[p + 3]
            s0, s1, s2, s3 = zero, zero, zero, zero
            for a in range(width):
                x = q[b, i, a]
                s0 += x * k[b, j0, a]
                s1 += x * k[b, j1, a]
                s2 += x * k[b, j2, a]
                s3 += x * k[b, j3, a]
            t0, t1, t2, t3 = s0, s1, s2, s3
            if absolute:
                t0, t1, t2, t3 = zero, zero, zero, zero
                for a in range(width):
                    x = abs(q[b, i, a])
                    t0 += x * abs(k[b, j0, a])
                    t1 += x * abs(k[b, j1, a])
                    t2 += x * abs(k[b, j2, a])
                    t3 += x * abs(k[b, j3, a])
            if own:
                total += t0 * magnitudes[p] + t1 * magnitudes[p + 1] + t2 * magnitudes[p + 2] + t3 * magnitudes[p + 3]
            else:
                total += t0 * values[p] + t1 * values[p + 1] + t2 * values[p + 2] + t3 * values[p + 3]
            s0 *= values[p]
            s1 *= values[p + 1]
            s2 *= values[p + 2]
            s3 *= values[p + 3]
            for d in range(depth):
                out[d] += s0 * v[b, j0, d] + s1 * v[b, j1, d] + s2 * v[b, j2, d] + s3 * v[b, j3, d]
            p += 4
        while p < end:
            j0 = columns[p]
            s0, t0 = zero, zero
            for a in range(width):
                s0 += q[b, i, a] * k[b, j0, a]
            t0 = s0
            if absolute:
                t0 = zero
                for a in range(width):
                    t0 += abs(q[b, i, a]) * abs(k[b, j0, a])
            total += t0 * (magnitudes[p] if own else values[p])
            s0 *= values[p]
            for d in range(depth):
                out[d] += s0 * v[b, j0, d]
            p += 1
        denominator[b, i] = total


def _backward(
    row_ptr,
    columns,
    values,
    magnitudes,
    q,
    k,
    v,
    absolute,
    grad_numerator,
    grad_denominator,
    starts,
    grad_values,
    grad_magnitudes,
    grad_q,
    parts_k,
    parts_v,
):
    """Gradients of everything; ``parts_k`` and ``parts_v`` [blocks, B, N, .] have one summand per block of rows."""
    batch, _, width = q.shape
    depth = v.shape[2]
    own = magnitudes.shape[0] > 0
    for block in prange(starts.shape[0] - 1):
        zero = q.dtype.type(0)
        for b in range(batch):
            for i in range(starts[block], starts[block + 1]):
                g_total = grad_denominator[b, i]
                for p in range(row_ptr[i], row_ptr[i + 1]):
                    j = columns[p]
                    s, t, u = zero, zero, zero
                    for a in range(width):
                        s += q[b, i, a] * k[b, j, a]
                    for d in range(depth):
                        u += grad_numerator[b, i, d] * v[b, j, d]
                    t = s
                    if absolute:
                        t = zero
                        for a in range(width):
                            t += abs(q[b, i, a]) * abs(k[b, j, a])
                    weight = magnitudes[p] if own else values[p]
                    grad_values[p] += s * u
                    if own:
                        grad_magnitudes[p] += t * g_total
                    else:
                        grad_values[p] += t * g_total
                    through, bare = values[p] * u, weight * g_total
                    if absolute:
                        for a in range(width):
                            x, y = q[b, i, a], k[b, j, a]
                            grad_q[b, i, a] += through * y + bare * np.sign(x) * abs(y)
                            parts_k[block, b, j, a] += through * x + bare * abs(x) * np.sign(y)
                    else:
                        both = through + bare
                        for a in range(width):
                            grad_q[b, i, a] += both * k[b, j, a]
                            parts_k[block, b, j, a] += both * q[b, i, a]
                    scaled = values[p] * s
                    for d in range(depth):
                        parts_v[block, b, j, d] += scaled * grad_numerator[b, i, d]


_forward_kernel, _backward_kernel = Kernel(_forward, fastmath=True), Kernel(_backward, fastmath=True)


def pair_attention(
    row_ptr: Tensor,
    columns: Tensor,
    values: Tensor,
    magnitudes: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    absolute: bool,
) -> tuple[Tensor, Tensor]:
    """Numerator [B, R, D] and denominator [B, R]."""
    numerator, denominator = q.new_zeros(*q.shape[:2], v.shape[2]), q.new_empty(q.shape[:2])
    tiles = None if absolute or not _tiles.fits(q, v) else _tiles.layout(row_ptr, columns)
    first_row = 0 if tiles is None else tiles.num_rows
    if tiles is not None:
        _tiles.forward(tiles, values, magnitudes, q, k, v, numerator, denominator)
    if first_row < q.shape[1]:
        _forward_kernel(
            *arrays(row_ptr, columns, values, magnitudes, q, k, v), absolute, first_row, *arrays(numerator, denominator)
        )
    return numerator, denominator


def pair_attention_backward(
    grad_numerator: Tensor,
    grad_denominator: Tensor,
    row_ptr: Tensor,
    columns: Tensor,
    values: Tensor,
    magnitudes: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    absolute: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients in values, magnitudes, q, k and v."""
    tiles = None if absolute or not _tiles.fits(q, v) else _tiles.layout(row_ptr, columns)
    first_row = 0 if tiles is None else tiles.num_rows
    starts = np.maximum(row_blocks(row_ptr), first_row)
    grads = [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (values, magnitudes, q)]
    parts = [q.new_zeros(len(starts) - 1, *x.shape) for x in (k, v)]
    if tiles is not None:
        _tiles.backward(tiles, values, magnitudes, q, k, v, grad_numerator, grad_denominator, *grads, *parts)
    if first_row < q.shape[1]:
        _backward_kernel(
            *arrays(row_ptr, columns, values, magnitudes, q, k, v),
            absolute,
            *arrays(grad_numerator, grad_denominator),
            starts,
            *arrays(*grads, *parts),
        )
    return grads[0], grads[1], grads[2], parts[0].sum(dim=0), parts[1].sum(dim=0)
