"""Sparse matrices with heads: all heads share one pattern [N_q, N_k], or each has its own.

Values are [V, P]. If heads share the pattern, V is their number H. If each has its own, the pattern [H * N_q, H * N_k]
is block-diagonal over heads, and V is 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.sparse_product import Pattern, spmm


def join_heads(
    tensors: tuple[Tensor, ...], is_key: Tensor | None, num_heads: int, num_rows: int, num_columns: int
) -> tuple[list[Tensor], Tensor | None]:
    """Reshape queries, keys and values [B, H, N, C] for a pattern [num_rows, num_columns].

    Heads with patterns of their own become part of the rows, [B, H * N, C]; heads that share a pattern become part of
    the batch, [B * H, N, C].
    """
    batch, heads, num_queries = tensors[0].shape[:3]
    # Both are compared, since there may be no queries or no keys.
    shared = (num_rows, num_columns) == (num_queries, tensors[1].shape[2])
    per_row = 1 if shared else num_heads
    count = batch * heads // per_row
    joined = [x.reshape(count, per_row * x.shape[2], x.shape[3]) for x in tensors]
    return joined, None if is_key is None else is_key.reshape(count, per_row * tensors[1].shape[2])


def multiply(pattern: Pattern, values: Tensor, x: Tensor, num_heads: int, transpose: bool = False) -> Tensor:
    """Multiply a sparse operator, or its transpose, by x [..., H, N, C], in at least float32.

    Args:
        pattern: Pattern of the operator, as described above.
        values: Entries of the operator, [V, P].
        x: The right-hand side; it may have any number of heads if the operator has one.
        num_heads: Number of heads of the operator.
        transpose: Whether to multiply by the transpose.
    """
    dtype = torch.promote_types(torch.promote_types(x.dtype, values.dtype), torch.float32)
    shared = len(values) == num_heads
    first = -2 if num_heads == 1 else -3
    moved = x.movedim(tuple(range(first, -1)), tuple(range(-1 - first)))  # heads and nodes, or nodes, come first
    rest = moved.shape[-1 - first :]
    # Not pattern.shape: the compiler does not support properties of a NamedTuple that it treats as a constant.
    pointers = (pattern.column_ptr, pattern.row_ptr) if transpose else (pattern.row_ptr, pattern.column_ptr)
    num_rows, num_columns = (len(ptr) - 1 for ptr in pointers)
    heads = () if num_heads == 1 else (num_heads,)
    # Reshaped rather than indexed: the gradient of indexing is copied into a tensor of zeros.
    several, values = heads if shared else (), values if shared and heads else values.squeeze(0)
    flat = moved.reshape(*several, num_columns, rest.numel())
    out = spmm(pattern, values.to(dtype), flat.to(dtype), transpose)
    out = out.reshape(*heads, num_rows if shared else num_rows // num_heads, *rest)
    return out.movedim(tuple(range(-1 - first)), tuple(range(first, -1))).to(x.dtype)


def densify(pattern: Pattern, values: Tensor, num_heads: int, num_queries: int, num_keys: int) -> Tensor:
    """Return the entries as a dense tensor, [H, N_q, N_k]."""
    row = segments.index(pattern.row_ptr, pattern.columns.shape[0])
    if len(values) == num_heads:
        dense = values.new_zeros(num_heads, num_queries * num_keys)
        place = (row * num_keys + pattern.columns).expand(num_heads, -1)
        return dense.scatter(1, place, values).view(num_heads, num_queries, num_keys)
    # Heads have columns of their own.
    dense = values.new_zeros(num_heads * num_queries, num_keys)
    column = pattern.columns - row // max(1, num_queries) * num_keys
    return dense.index_put((row, column), values[0]).view(num_heads, num_queries, num_keys)
