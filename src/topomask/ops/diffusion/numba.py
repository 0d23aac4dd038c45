"""A series of Chebyshev polynomials of a sparse matrix, times a dense one; compiled.

Columns are independent of each other, so a thread computes all terms for some of them: its data stays in its cache, and
threads never wait for each other.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from topomask.ops.backend import FAST, BlockKernel, arrays
from topomask.ops.diffusion.reference import recur
from topomask.ops.sparse_product import numba as sparse_product

# The most columns that a thread processes at a time, and the fewest per thread that are worth sharing.
_WIDTH = 64
_MIN_WIDTH = 8


@njit(**FAST)
def _step(row_ptr, columns, values, factor, coefficient, current, previous, out):
    """Replace ``previous`` with ``factor * B current - previous``, and add a multiple of it to ``out``."""
    width = current.shape[1]
    for row in range(row_ptr.shape[0] - 1):
        i = np.uint64(row)
        for c in range(width):
            previous[i, c] = -previous[i, c]
        p, end = row_ptr[row], row_ptr[row + 1]
        while p + 4 <= end:
            j0, j1, j2, j3 = (
                np.uint64(columns[p]),
                np.uint64(columns[p + 1]),
                np.uint64(columns[p + 2]),
                np.uint64(columns[p + 3]),
            )
            w0, w1, w2, w3 = factor * values[p], factor * values[p + 1], factor * values[p + 2], factor * values[p + 3]
            for c in range(width):
                previous[i, c] += w0 * current[j0, c] + w1 * current[j1, c] + w2 * current[j2, c] + w3 * current[j3, c]
            p += 4
        while p < end:
            j0, w0 = np.uint64(columns[p]), factor * values[p]
            for c in range(width):
                previous[i, c] += w0 * current[j0, c]
            p += 1
        for c in range(width):
            out[i, c] += coefficient * previous[i, c]


def _expand(start_block, stop_block, row_ptr, columns, values, coefficients, starts, x, out):
    """Compute the series, some columns at a time."""
    num_rows = x.shape[0]
    for block in range(start_block, stop_block):
        start, width = starts[block], starts[block + 1] - starts[block]
        one, two = values.dtype.type(1), values.dtype.type(2)
        current, previous = np.empty((num_rows, width), x.dtype), np.zeros((num_rows, width), x.dtype)
        total = np.empty((num_rows, width), x.dtype)
        for i in range(num_rows):
            for c in range(width):
                current[i, c] = x[i, start + c]
                total[i, c] = coefficients[0] * x[i, start + c]
        for k in range(1, coefficients.shape[0]):
            _step(row_ptr, columns, values, one if k == 1 else two, coefficients[k], current, previous, total)
            current, previous = previous, current
        for i in range(num_rows):
            for c in range(width):
                out[i, start + c] = total[i, c]


_expand_kernel = BlockKernel(_expand, fastmath=True, allocates=True)


def expand(row_ptr: Tensor, columns: Tensor, values: Tensor, coefficients: list[float], x: Tensor) -> Tensor:
    r"""Return :math:`\sum_k c_k T_k(B)\,x` for a sparse B [N, N] with ``values`` [P] and x [N, C]."""
    threads = torch.get_num_threads()
    if x.shape[1] < _MIN_WIDTH * threads:
        # Too few columns to share: threads share the rows of every product instead.
        return recur(lambda t: sparse_product.spmm(row_ptr, columns, values[None], t[None])[0], coefficients, x)
    out = x.new_empty(x.shape)
    blocks = -(-x.shape[1] // (_WIDTH * threads)) * threads
    starts = np.linspace(0, x.shape[1], blocks + 1).astype(np.int64)
    numbers = np.array(coefficients, dtype=x.numpy().dtype)
    _expand_kernel(blocks, *arrays(row_ptr, columns, values), numbers, starts, *arrays(x, out))
    return out
