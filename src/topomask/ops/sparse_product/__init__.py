"""Sparse matrix times dense matrix, and its adjoint in the values: each is the other's derivative."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.sparse_product import reference


class Pattern(NamedTuple):
    """Where a sparse matrix [R, N] has entries, by rows and by columns."""

    row_ptr: Tensor  # [R + 1]
    columns: Tensor  # [P]
    column_ptr: Tensor  # [N + 1]
    rows: Tensor  # [P], ordered by column
    order: Tensor  # [P], place in the row order of every entry in the column order

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, (R, N)."""
        return len(self.row_ptr) - 1, len(self.column_ptr) - 1

    @property
    def transposed(self) -> Pattern:
        """The pattern of the transposed matrix; its values are ``values[order]``."""
        inverse = torch.empty_like(self.order)
        inverse[self.order] = torch.arange(len(self.order), device=self.order.device)
        return Pattern(self.column_ptr, self.rows, self.row_ptr, self.columns, inverse)

    def to(self, device: torch.device) -> Pattern:
        """The pattern on another device."""
        return Pattern(*(tensor.to(device) for tensor in self))


def make_pattern(row_ptr: Tensor, columns: Tensor, num_columns: int) -> Pattern:
    """Index a pattern by columns too."""
    order = columns.argsort(stable=True)
    column_ptr = segments.pointers(torch.bincount(columns, minlength=num_columns))
    return Pattern(row_ptr, columns, column_ptr, segments.index(row_ptr)[order], order)


@torch.library.custom_op("topomask::spmm", mutates_args=())
def _spmm(
    row_ptr: Tensor, columns: Tensor, column_ptr: Tensor, rows: Tensor, order: Tensor, values: Tensor, x: Tensor
) -> Tensor:
    return reference.spmm(row_ptr, columns, values, x)


@_spmm.register_fake
def _(
    row_ptr: Tensor, columns: Tensor, column_ptr: Tensor, rows: Tensor, order: Tensor, values: Tensor, x: Tensor
) -> Tensor:
    return x.new_empty(row_ptr.shape[0] - 1, x.shape[1])


@torch.library.custom_op("topomask::sddmm", mutates_args=())
def _sddmm(
    row_ptr: Tensor, columns: Tensor, column_ptr: Tensor, rows: Tensor, order: Tensor, a: Tensor, b: Tensor
) -> Tensor:
    return reference.sddmm(row_ptr, columns, a, b)


@_sddmm.register_fake
def _(
    row_ptr: Tensor, columns: Tensor, column_ptr: Tensor, rows: Tensor, order: Tensor, a: Tensor, b: Tensor
) -> Tensor:
    return a.new_empty(columns.shape[0])


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _spmm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    *parts, values, x = ctx.saved_tensors
    pattern = Pattern(*parts)
    grad_values = _sddmm(*pattern, grad, x) if ctx.needs_input_grad[5] else None
    grad_x = _spmm(*pattern.transposed, values[pattern.order], grad) if ctx.needs_input_grad[6] else None
    return None, None, None, None, None, grad_values, grad_x


def _sddmm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    *parts, a, b = ctx.saved_tensors
    pattern = Pattern(*parts)
    grad_a = _spmm(*pattern, grad, b) if ctx.needs_input_grad[5] else None
    grad_b = _spmm(*pattern.transposed, grad[pattern.order], a) if ctx.needs_input_grad[6] else None
    return None, None, None, None, None, grad_a, grad_b


_spmm.register_autograd(_spmm_backward, setup_context=_save)
_sddmm.register_autograd(_sddmm_backward, setup_context=_save)


def spmm(pattern: Pattern, values: Tensor, x: Tensor) -> Tensor:
    """Sparse matrix with ``values`` [P] times ``x`` [N, C], to [R, C]; differentiable in both."""
    return _spmm(*pattern, values, x)


def sddmm(pattern: Pattern, a: Tensor, b: Tensor) -> Tensor:
    """Entries of ``a @ b.T`` where the pattern has any, [P], for a [R, C] and b [N, C]; differentiable in both."""
    return _sddmm(*pattern, a, b)
