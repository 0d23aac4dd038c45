"""Products with a sparse matrix in compressed sparse rows, compiled."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.backend import BlockKernel, Kernel, arrays, row_blocks

# Columns of the result that are summed at a time, so that they stay in the first-level cache.
_WIDTH = 2048


def _by_column(row_ptr, columns, places, rows, order):
    """Sort entries by column with a counting sort: ``places`` is where the next entry of every column goes."""
    for i in range(row_ptr.shape[0] - 1):
        for p in range(row_ptr[i], row_ptr[i + 1]):
            place = places[columns[p]]
            rows[place], order[place] = i, p
            places[columns[p]] = place + 1


def _spmm(start_block, stop_block, row_ptr, columns, values, x, starts, out):
    """Compute rows of the products, four entries at a time."""
    width = x.shape[2]
    for block in range(start_block, stop_block):
        for head in range(x.shape[0]):
            weights, source, target = values[head], x[head], out[head]
            for i in range(starts[block], starts[block + 1]):
                for start in range(0, width, _WIDTH):
                    row, stop = target[i, start : start + _WIDTH], min(_WIDTH, width - start)
                    for c in range(stop):
                        row[c] = 0
                    p, end = row_ptr[i], row_ptr[i + 1]
                    while p + 4 <= end:
                        x0, x1 = source[columns[p], start:], source[columns[p + 1], start:]
                        x2, x3 = source[columns[p + 2], start:], source[columns[p + 3], start:]
                        w0, w1, w2, w3 = weights[p], weights[p + 1], weights[p + 2], weights[p + 3]
                        for c in range(stop):
                            row[c] += w0 * x0[c] + w1 * x1[c] + w2 * x2[c] + w3 * x3[c]
                        p += 4
                    while p < end:
                        x0, w0 = source[columns[p], start:], weights[p]
                        for c in range(stop):
                            row[c] += w0 * x0[c]
                        p += 1


def _sddmm(start_block, stop_block, row_ptr, columns, a, b, starts, out):
    """Compute dot products of rows of ``a`` with rows of ``b``, four at a time."""
    width = a.shape[2]
    for block in range(start_block, stop_block):
        zero = a.dtype.type(0)
        for head in range(a.shape[0]):
            left, right, target = a[head], b[head], out[head]
            for i in range(starts[block], starts[block + 1]):
                p, end = row_ptr[i], row_ptr[i + 1]
                while p + 4 <= end:
                    b0, b1 = right[columns[p]], right[columns[p + 1]]
                    b2, b3 = right[columns[p + 2]], right[columns[p + 3]]
                    s0, s1, s2, s3 = zero, zero, zero, zero
                    for c in range(width):
                        value = left[i, c]
                        s0 += value * b0[c]
                        s1 += value * b1[c]
                        s2 += value * b2[c]
                        s3 += value * b3[c]
                    target[p], target[p + 1], target[p + 2], target[p + 3] = s0, s1, s2, s3
                    p += 4
                while p < end:
                    b0, s0 = right[columns[p]], zero
                    for c in range(width):
                        s0 += left[i, c] * b0[c]
                    target[p] = s0
                    p += 1


_by_column_kernel = Kernel(_by_column)
_spmm_kernel, _sddmm_kernel = BlockKernel(_spmm, fastmath=True), BlockKernel(_sddmm, fastmath=True)


def by_column(row_ptr: Tensor, columns: Tensor, column_ptr: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row of every entry in column order, and its place in row order."""
    rows = torch.empty_like(columns)
    order = torch.empty(len(columns), dtype=segments.index_type(len(columns)), device="cpu")
    places = np.array(column_ptr[:-1].numpy())
    _by_column_kernel(*arrays(row_ptr, columns), places, *arrays(rows, order))
    return rows, order


def spmm(row_ptr: Tensor, columns: Tensor, values: Tensor, x: Tensor) -> Tensor:
    """Multiply sparse matrices [R, N] of one pattern, ``values`` [V, P], by ``x`` [V, N, C]; returns [V, R, C]."""
    out = x.new_empty(len(x), len(row_ptr) - 1, x.shape[2])
    starts = row_blocks(row_ptr)
    _spmm_kernel(len(starts) - 1, *arrays(row_ptr, columns, values, x), starts, *arrays(out))
    return out


def sddmm(row_ptr: Tensor, columns: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return the entries of ``a @ b.mT`` at those of a pattern, [V, P], for a [V, R, C] and b [V, N, C]."""
    out = a.new_empty(len(a), len(columns))
    starts = row_blocks(row_ptr)
    _sddmm_kernel(len(starts) - 1, *arrays(row_ptr, columns, a, b), starts, *arrays(out))
    return out
