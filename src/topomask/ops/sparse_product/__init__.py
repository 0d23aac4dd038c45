"""Sparse matrix times dense matrix, and its adjoint in the values: each is the other's derivative."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.backend import compiled, in_float32
from topomask.ops.sparse_product import reference


class Pattern(NamedTuple):
    """Where a sparse matrix [R, N] has entries, by rows and by columns; int32 where it fits, but for pointers."""

    row_ptr: Tensor  # [R + 1], int64
    columns: Tensor  # [P]
    column_ptr: Tensor  # [N + 1], int64
    rows: Tensor  # [P], ordered by column
    order: Tensor  # [P], place in the row order of every entry in the column order

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, (R, N)."""
        return len(self.row_ptr) - 1, len(self.column_ptr) - 1

    def to(self, device: torch.device) -> Pattern:
        """The pattern on another device."""
        return Pattern(*(tensor.to(device) for tensor in self))


def _backend(tensor: Tensor) -> ModuleType:
    if not compiled(tensor):
        return reference
    from topomask.ops.sparse_product import numba

    return numba


def make_pattern(row_ptr: Tensor, columns: Tensor, num_columns: int) -> Pattern:
    """Index a pattern by columns too."""
    counts = torch.bincount(columns, minlength=num_columns)
    column_ptr = segments.pointers(counts)
    columns = columns.to(segments.index_type(max(num_columns, len(row_ptr))))
    return Pattern(row_ptr, columns, column_ptr, *_backend(columns).by_column(row_ptr, columns, column_ptr))


@torch.library.custom_op("topomask::spmm", mutates_args=())
def _spmm(
    row_ptr: Tensor,
    columns: Tensor,
    column_ptr: Tensor,
    rows: Tensor,
    order: Tensor,
    values: Tensor,
    x: Tensor,
    transpose: bool,
) -> Tensor:
    if transpose:
        return _backend(x).spmm(column_ptr, rows, values[order], x)
    return _backend(x).spmm(row_ptr, columns, values, x)


@_spmm.register_fake
def _(
    row_ptr: Tensor,
    columns: Tensor,
    column_ptr: Tensor,
    rows: Tensor,
    order: Tensor,
    values: Tensor,
    x: Tensor,
    transpose: bool,
) -> Tensor:
    return x.new_empty((column_ptr if transpose else row_ptr).shape[0] - 1, x.shape[1])


@torch.library.custom_op("topomask::sddmm", mutates_args=())
def _sddmm(
    row_ptr: Tensor, columns: Tensor, column_ptr: Tensor, rows: Tensor, order: Tensor, a: Tensor, b: Tensor
) -> Tensor:
    return _backend(a).sddmm(row_ptr, columns, a, b)


@_sddmm.register_fake
def _(
    row_ptr: Tensor, columns: Tensor, column_ptr: Tensor, rows: Tensor, order: Tensor, a: Tensor, b: Tensor
) -> Tensor:
    return a.new_empty(columns.shape[0])


def _save_spmm(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:-1])
    ctx.transpose = inputs[-1]


def _spmm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    *pattern, values, x = ctx.saved_tensors
    pair = (x, grad) if ctx.transpose else (grad, x)
    grad_values = _sddmm(*pattern, *pair) if ctx.needs_input_grad[5] else None
    grad_x = _spmm(*pattern, values, grad, not ctx.transpose) if ctx.needs_input_grad[6] else None
    return None, None, None, None, None, grad_values, grad_x, None


def _save_sddmm(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _sddmm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    *pattern, a, b = ctx.saved_tensors
    grad_a = _spmm(*pattern, grad, b, False) if ctx.needs_input_grad[5] else None
    grad_b = _spmm(*pattern, grad, a, True) if ctx.needs_input_grad[6] else None
    return None, None, None, None, None, grad_a, grad_b


_spmm.register_autograd(_spmm_backward, setup_context=_save_spmm)
_sddmm.register_autograd(_sddmm_backward, setup_context=_save_sddmm)
in_float32(_spmm)
in_float32(_sddmm)


def spmm(pattern: Pattern, values: Tensor, x: Tensor, transpose: bool = False) -> Tensor:
    """Sparse matrix [R, N] with ``values`` [P], or its transpose, times ``x``; differentiable in both.

    Sums are taken in at least float32; the answer has the precision of ``x``.
    """
    # The compiler knows the fields of a pattern, but not always its properties.
    count = len(pattern.row_ptr if transpose else pattern.column_ptr) - 1
    if x.ndim != 2 or len(x) != count:
        raise ValueError(
            f"`x` must have shape [{count}, C] to be multiplied by a sparse matrix of {count} columns, but has shape "
            f"{tuple(x.shape)}. Pass a row per column of the matrix: per node of a graph, or per feature."
        )
    wide = torch.promote_types(x.dtype, torch.float32)
    return _spmm(*pattern, values.to(wide), x.to(wide), transpose).to(x.dtype)


def sddmm(pattern: Pattern, a: Tensor, b: Tensor) -> Tensor:
    """Entries of ``a @ b.T`` where the pattern has any, [P], for a [R, C] and b [N, C]; differentiable in both."""
    return _sddmm(*pattern, a, b)
