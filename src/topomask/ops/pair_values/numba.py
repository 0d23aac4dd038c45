"""The sparse product of query features and transposed key features, compiled.

Every thread processes a block of rows and adds up each row in a dense scratch array, which stays in the cache if
neighbours have nearby indices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.backend import MAX_PARTS, BlockKernel, arrays, by_head, row_blocks
from topomask.ops.pair_values import Factors, Product
from topomask.ops.sorting import sort


class _Factors(NamedTuple):
    """Features of queries by row and of keys by column, as arrays."""

    row_ptr: np.ndarray
    columns: np.ndarray
    column_ptr: np.ndarray
    rows: np.ndarray


def _count(start_block, stop_block, factors, starts, last_rows, counts):
    """Count the entries of every row of the product; ``last_rows`` has zeros for every block."""
    row_ptr, columns, column_ptr, rows = factors
    for block in range(start_block, stop_block):
        seen = last_rows[block]
        for i in range(starts[block], starts[block + 1]):
            count = 0
            for entry in range(row_ptr[i], row_ptr[i + 1]):
                c = columns[entry]
                for place in range(column_ptr[c], column_ptr[c + 1]):
                    j = rows[place]
                    if seen[j] != i + 1:
                        seen[j] = i + 1
                        count += 1
            counts[i] = count


def _fill(start_block, stop_block, factors, starts, last_rows, pair_ptr, pair_columns):
    """Write the ascending columns of every row of the product; ``last_rows`` has zeros for every block."""
    row_ptr, columns, column_ptr, rows = factors
    for block in range(start_block, stop_block):
        seen = last_rows[block]
        for i in range(starts[block], starts[block + 1]):
            p = pair_ptr[i]
            for entry in range(row_ptr[i], row_ptr[i + 1]):
                c = columns[entry]
                for place in range(column_ptr[c], column_ptr[c + 1]):
                    j = rows[place]
                    if seen[j] != i + 1:
                        seen[j] = i + 1
                        pair_columns[p] = j
                        p += 1
            sort(pair_columns[pair_ptr[i] : pair_ptr[i + 1]])


def _values(start_block, stop_block, factors, pair_ptr, pair_columns, query_values, key_values, starts, totals, out):
    """Compute the values [V, P] of the product on its pattern; ``totals`` has zeros for every block."""
    row_ptr, columns, column_ptr, rows = factors
    for block in range(start_block, stop_block):
        total = totals[block]
        for head in range(out.shape[0]):
            query, key, target = query_values[head], key_values[head], out[head]
            for i in range(starts[block], starts[block + 1]):
                for entry in range(row_ptr[i], row_ptr[i + 1]):
                    c, value = columns[entry], query[entry]
                    for place in range(column_ptr[c], column_ptr[c + 1]):
                        total[rows[place]] += value * key[place]
                for p in range(pair_ptr[i], pair_ptr[i + 1]):
                    target[p] = total[pair_columns[p]]
                    total[pair_columns[p]] = 0


def _backward(
    start_block,
    stop_block,
    grads,
    factors,
    pair_ptr,
    pair_columns,
    query_values,
    key_values,
    starts,
    row_grads,
    grad_query,
    parts_key,
):
    """Compute the gradients of query values, [V, P_q], and of key values, [blocks, V, P_k], one summand per block."""
    row_ptr, columns, column_ptr, rows = factors
    for block in range(start_block, stop_block):
        row_grad = row_grads[block]
        for head in range(grads.shape[0]):
            grad, query, key = grads[head], query_values[head], key_values[head]
            to_query, to_key = grad_query[head], parts_key[block, head]
            for i in range(starts[block], starts[block + 1]):
                for p in range(pair_ptr[i], pair_ptr[i + 1]):
                    row_grad[pair_columns[p]] = grad[p]
                for entry in range(row_ptr[i], row_ptr[i + 1]):
                    c, value = columns[entry], query[entry]
                    total = value * 0
                    for place in range(column_ptr[c], column_ptr[c + 1]):
                        g = row_grad[rows[place]]
                        total += g * key[place]
                        to_key[place] += g * value
                    to_query[entry] = total


_count_kernel, _fill_kernel = BlockKernel(_count), BlockKernel(_fill)
_values_kernel, _backward_kernel = BlockKernel(_values, fastmath=True), BlockKernel(_backward, fastmath=True)


def _arrays(factors: Factors) -> _Factors:
    return _Factors(*arrays(factors.row_ptr, factors.columns, factors.column_ptr, factors.rows))


def count_pairs(factors: Factors) -> Tensor:
    """Entries of every row of the product."""
    starts = row_blocks(factors.row_ptr, MAX_PARTS)
    counts = torch.zeros(len(factors.row_ptr) - 1, dtype=torch.int64, device="cpu")
    last_rows = np.zeros((len(starts) - 1, factors.num_keys), np.int64)
    _count_kernel(len(starts) - 1, _arrays(factors), starts, last_rows, counts.numpy())
    return counts


def pair_pattern(factors: Factors) -> tuple[Tensor, Tensor]:
    """Return row pointers and ascending columns of the product."""
    row_ptr = segments.pointers(count_pairs(factors))
    columns = torch.empty(int(row_ptr[-1]), dtype=torch.int64, device="cpu")
    starts = row_blocks(factors.row_ptr, MAX_PARTS)
    last_rows = np.zeros((len(starts) - 1, factors.num_keys), np.int64)
    _fill_kernel(len(starts) - 1, _arrays(factors), starts, last_rows, row_ptr.numpy(), columns.numpy())
    return row_ptr, columns


def pair_values(product: Product) -> Tensor:
    """Return the values of the product on its pattern, [P] or [V, P]."""
    query, key = product.query_values, product.key_values
    out = query.new_empty(*query.shape[:-1], len(product.columns))
    starts = row_blocks(product.factors.row_ptr, MAX_PARTS)
    _values_kernel(
        len(starts) - 1,
        _arrays(product.factors),
        *arrays(product.row_ptr, product.columns),
        by_head(query),
        by_head(key),
        starts,
        query.new_zeros(len(starts) - 1, product.factors.num_keys).numpy(),
        by_head(out),
    )
    return out


def pair_values_backward(product: Product, grad: Tensor) -> dict[str, Tensor]:
    """Return the gradients of the values of queries and of keys."""
    query, key = product.query_values, product.key_values
    starts = row_blocks(product.factors.row_ptr, MAX_PARTS)
    grad_query = torch.empty_like(query, memory_format=torch.contiguous_format)
    parts_key = key.new_zeros(len(starts) - 1, *(key.shape if key.ndim == 2 else (1, *key.shape)))
    _backward_kernel(
        len(starts) - 1,
        by_head(grad),
        _arrays(product.factors),
        *arrays(product.row_ptr, product.columns),
        by_head(query),
        by_head(key),
        starts,
        grad.new_zeros(len(starts) - 1, product.factors.num_keys).numpy(),
        by_head(grad_query),
        parts_key.numpy(),
    )
    return {"query_values": grad_query, "key_values": parts_key.sum(dim=0).reshape(key.shape)}
