"""The entries of a mask that is a product of sparse features, M = Phi_q Phi_k^T."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.backend import compiled, in_float32
from topomask.ops.pair_values import reference
from topomask.ops.sparse_product import Pattern, make_pattern

_PATTERN_INPUTS = 7


def _backend(tensor: Tensor) -> ModuleType:
    if not compiled(tensor):
        return reference
    from topomask.ops.pair_values import numba

    return numba


@torch.library.custom_op("topomask::pair_values", mutates_args=())
def _pair_values(
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
    return _backend(query_values).pair_values(
        row_ptr, columns, query_row_ptr, query_columns, key_column_ptr, key_rows, num_keys, query_values, key_values
    )


@_pair_values.register_fake
def _(row_ptr: Tensor, columns: Tensor, *args: Any) -> Tensor:
    return args[-1].new_empty(columns.shape[0])


@torch.library.custom_op("topomask::pair_values_backward", mutates_args=())
def _pair_values_backward(
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
    return _backend(query_values).pair_values_backward(
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
    )


@_pair_values_backward.register_fake
def _(*args: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(args[-2]), torch.empty_like(args[-1])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.num_keys = inputs[6]
    ctx.save_for_backward(*inputs[:6], *inputs[7:])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    grads = _pair_values_backward(grad, *saved[:6], ctx.num_keys, *saved[6:])
    return (None,) * _PATTERN_INPUTS + tuple(grads)


_pair_values.register_autograd(_backward, setup_context=_save)
in_float32(_pair_values)


def count_triples(query: Pattern, key: Pattern) -> int:
    """The work behind the product: pairs (i, c), (j, c) that meet in a node c. Bounds the number of its entries."""
    return int(query.column_ptr.diff() @ key.column_ptr.diff())


def estimate_pairs(query: Pattern, key: Pattern, num_rows: int = 64) -> int:
    """The number of entries of the product, from the rows of a sample."""
    total = query.shape[0]
    if not total:
        return 0
    rows = torch.linspace(0, total - 1, min(num_rows, total), device=query.row_ptr.device).round().to(torch.int64)
    counts = query.row_ptr.diff()[rows]
    columns = query.columns[segments.ranges(query.row_ptr[rows], counts)]
    row_ptr, _ = _backend(query.columns).pair_pattern(
        segments.pointers(counts), columns, key.column_ptr, key.rows, key.shape[0]
    )
    return round(int(row_ptr[-1]) * total / len(rows))


def pair_pattern(query: Pattern, key: Pattern) -> Pattern:
    """The pattern of Phi_q Phi_k^T for features with patterns [R, N] and [S, N]."""
    num_keys = key.shape[0]
    row_ptr, columns = _backend(query.columns).pair_pattern(
        query.row_ptr, query.columns, key.column_ptr, key.rows, num_keys
    )
    return make_pattern(row_ptr, columns, num_keys)


def pair_values(pairs: Pattern, query: Pattern, key: Pattern, query_values: Tensor, key_values: Tensor) -> Tensor:
    """Values of Phi_q Phi_k^T on its pattern ``pairs``; differentiable in both sets of values."""
    return _pair_values(
        pairs.row_ptr,
        pairs.columns,
        query.row_ptr,
        query.columns,
        key.column_ptr,
        key.rows,
        key.shape[0],
        query_values,
        key_values[key.order],
    )
