"""The sparse product of query features and transposed key features, compiled.

Every thread takes a block of rows and adds up a row in a dense scratch array, which stays in cache where neighbours
have nearby numbers.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import prange
from torch import Tensor

from topomask.ops import segments
from topomask.ops.backend import MAX_PARTS, Kernel, arrays, row_blocks


def _count(query_row_ptr, query_columns, key_column_ptr, key_rows, num_keys, starts, counts):
    """Entries of every row of the product."""
    for block in prange(starts.shape[0] - 1):
        seen = np.full(num_keys, -1, np.int64)
        for i in range(starts[block], starts[block + 1]):
            count = 0
            for entry in range(query_row_ptr[i], query_row_ptr[i + 1]):
                c = query_columns[entry]
                for place in range(key_column_ptr[c], key_column_ptr[c + 1]):
                    j = key_rows[place]
                    if seen[j] != i:
                        seen[j] = i
                        count += 1
            counts[i] = count


def _fill(query_row_ptr, query_columns, key_column_ptr, key_rows, num_keys, starts, row_ptr, columns):
    """Ascending columns of every row of the product."""
    for block in prange(starts.shape[0] - 1):
        seen = np.full(num_keys, -1, np.int64)
        for i in range(starts[block], starts[block + 1]):
            p = row_ptr[i]
            for entry in range(query_row_ptr[i], query_row_ptr[i + 1]):
                c = query_columns[entry]
                for place in range(key_column_ptr[c], key_column_ptr[c + 1]):
                    j = key_rows[place]
                    if seen[j] != i:
                        seen[j] = i
                        columns[p] = j
                        p += 1
            columns[row_ptr[i] : row_ptr[i + 1]].sort()


def _values(
    row_ptr,
    columns,
    query_row_ptr,
    query_columns,
    key_column_ptr,
    key_rows,
    num_keys,
    query_values,
    key_values,
    starts,
    out,
):
    """Values of the product on its pattern."""
    for block in prange(starts.shape[0] - 1):
        total = np.zeros(num_keys, out.dtype)
        for i in range(starts[block], starts[block + 1]):
            for entry in range(query_row_ptr[i], query_row_ptr[i + 1]):
                c, value = query_columns[entry], query_values[entry]
                for place in range(key_column_ptr[c], key_column_ptr[c + 1]):
                    total[key_rows[place]] += value * key_values[place]
            for p in range(row_ptr[i], row_ptr[i + 1]):
                out[p] = total[columns[p]]
                total[columns[p]] = 0


def _backward(
    grad,
    row_ptr,
    columns,
    query_row_ptr,
    query_columns,
    key_column_ptr,
    key_rows,
    num_keys,
    query_values,
    key_values,
    starts,
    grad_query,
    parts_key,
):
    """Gradients in the query values, and in the key values with one summand per block of rows."""
    for block in prange(starts.shape[0] - 1):
        row_grad = np.zeros(num_keys, grad.dtype)
        for i in range(starts[block], starts[block + 1]):
            for p in range(row_ptr[i], row_ptr[i + 1]):
                row_grad[columns[p]] = grad[p]
            for entry in range(query_row_ptr[i], query_row_ptr[i + 1]):
                c, value = query_columns[entry], query_values[entry]
                total = value * 0
                for place in range(key_column_ptr[c], key_column_ptr[c + 1]):
                    g = row_grad[key_rows[place]]
                    total += g * key_values[place]
                    parts_key[block, place] += g * value
                grad_query[entry] = total


_count_kernel, _fill_kernel = Kernel(_count), Kernel(_fill)
_values_kernel, _backward_kernel = Kernel(_values, fastmath=True), Kernel(_backward, fastmath=True)


def pair_pattern(
    query_row_ptr: Tensor, query_columns: Tensor, key_column_ptr: Tensor, key_rows: Tensor, num_keys: int
) -> tuple[Tensor, Tensor]:
    """Row pointers and ascending columns of the product."""
    inputs = (
        *arrays(query_row_ptr, query_columns, key_column_ptr, key_rows),
        num_keys,
        row_blocks(query_row_ptr, MAX_PARTS),
    )
    counts = torch.zeros(len(query_row_ptr) - 1, dtype=torch.int64, device="cpu")
    _count_kernel(*inputs, counts.numpy())
    row_ptr = segments.pointers(counts)
    columns = torch.empty(int(row_ptr[-1]), dtype=torch.int64, device="cpu")
    _fill_kernel(*inputs, row_ptr.numpy(), columns.numpy())
    return row_ptr, columns


def pair_values(
    row_ptr: Tensor,
    columns: Tensor,
    query_row_ptr: Tensor,
    query_columns: Tensor,
    key_column_ptr: Tensor,
    key_rows: Tensor,
    num_keys: int,
    query_values: Tensor,
    key_values: Tensor,
) -> Tensor:
    """Values of the product on its pattern, [P]; ``key_values`` come in column order."""
    out = query_values.new_empty(len(columns))
    _values_kernel(
        *arrays(row_ptr, columns, query_row_ptr, query_columns, key_column_ptr, key_rows),
        num_keys,
        *arrays(query_values, key_values),
        row_blocks(query_row_ptr, MAX_PARTS),
        out.numpy(),
    )
    return out


def pair_values_backward(
    grad: Tensor,
    row_ptr: Tensor,
    columns: Tensor,
    query_row_ptr: Tensor,
    query_columns: Tensor,
    key_column_ptr: Tensor,
    key_rows: Tensor,
    num_keys: int,
    query_values: Tensor,
    key_values: Tensor,
) -> tuple[Tensor, Tensor]:
    """Derivatives in the values of queries and of keys (in column order)."""
    starts = row_blocks(query_row_ptr, MAX_PARTS)
    grad_query = torch.empty_like(query_values, memory_format=torch.contiguous_format)
    parts_key = key_values.new_zeros(len(starts) - 1, len(key_values))
    _backward_kernel(
        *arrays(grad, row_ptr, columns, query_row_ptr, query_columns, key_column_ptr, key_rows),
        num_keys,
        *arrays(query_values, key_values),
        starts,
        grad_query.numpy(),
        parts_key.numpy(),
    )
    return grad_query, parts_key.sum(dim=0)
