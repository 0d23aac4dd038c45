"""Patterns of sparse matrices; sparse matrix times dense matrix, and its adjoint in the values.

The two products are each other's derivative.

``R`` rows, ``N`` columns, ``P`` entries. Several heads may share a pattern: values are then [V, P], and dense matrices
get a leading axis V.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from topomask.ops import segments
from topomask.ops.backend import implementation
from topomask.ops.registration import Op, check_shape, check_values

# Orders of rows in which neighbours have mostly the same columns, which fills tiles and keeps caches warm. Keyed by the
# columns of a pattern, as long as these live.
_suggested: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

Owner = TypeVar("Owner")


class Pattern(NamedTuple):
    """Where a sparse matrix [R, N] has entries, by rows and by columns; int32 if that fits, except for pointers."""

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

    def check(self) -> None:
        """Raise a ValueError unless rows and columns are in range, and both orders describe the same entries."""
        segments.check_once(_check_pattern, self)


def _check_pattern(row_ptr: Tensor, columns: Tensor, column_ptr: Tensor, rows: Tensor, order: Tensor) -> None:
    check_rows(row_ptr, columns, len(column_ptr) - 1)
    check_rows(column_ptr, rows, len(row_ptr) - 1, names=("column_ptr", "rows"))
    segments.check_indices("order", order, len(columns))
    order = order.long()
    fits = len(rows) == len(order) == len(columns)
    if not fits or not (
        torch.equal(columns[order].long(), segments.index(column_ptr))
        and torch.equal(segments.index(row_ptr)[order], rows.long())
    ):
        raise ValueError(
            "`column_ptr`, `rows` and `order` of the pattern do not describe the same entries as `row_ptr` and "
            "`columns`. Make patterns with make_pattern(row_ptr, columns, num_columns)."
        )


def check_rows(
    row_ptr: Tensor, columns: Tensor, num_columns: int, names: tuple[str, str] = ("row_ptr", "columns")
) -> None:
    """Raise a ValueError unless these are compressed sparse rows."""
    segments.check_indices(names[1], columns, num_columns)
    segments.check_pointers(names[0], row_ptr, len(columns))


def make_pattern(row_ptr: Tensor, columns: Tensor, num_columns: int) -> Pattern:
    """Index a pattern by columns too. Raises a ValueError unless it is given as compressed sparse rows."""
    segments.check_once(check_rows, (row_ptr, columns), num_columns)
    counts = torch.bincount(columns, minlength=num_columns)
    column_ptr = segments.pointers(counts)
    columns = columns.to(segments.index_type(max(num_columns, len(row_ptr))))
    rows, order = implementation(__name__, columns).by_column(row_ptr, columns, column_ptr)
    pattern = Pattern(row_ptr, columns, column_ptr, rows, order)
    segments.mark_checked(_check_pattern, pattern)
    return pattern


def suggest_order(columns: Tensor, owner: Owner, order: Callable[[Owner], Tensor]) -> None:
    """Suggest an order in which to process the rows of the pattern with these columns; it is computed on first use.

    Args:
        columns: The columns of the pattern.
        owner: What the order is computed from, such as a graph. Only a weak reference is stored, since the owner may
            itself hold the columns.
        order: Computes the order from the owner; must not hold a reference to it.
    """
    _suggested[columns] = weakref.ref(owner), order


def row_order(row_ptr: Tensor, columns: Tensor, num_columns: int) -> Tensor | None:
    """Return the order that was suggested for a pattern; else one found from the pattern if it is square; else None."""
    from topomask.ops.tiles.layout import order_nodes

    if columns in _suggested:
        reference, order = _suggested[columns]
        if (owner := reference()) is not None:
            return order(owner)
    return order_nodes(row_ptr, columns) if len(row_ptr) - 1 == num_columns else None


class _Product(NamedTuple):
    pattern: Pattern
    values: Tensor  # [P] or [V, P]
    x: Tensor  # [N, C] or [V, N, C]; R in place of N if transposed
    transpose: bool

    def check(self) -> None:
        """Raise a ValueError unless shapes match."""
        pattern, values, x, transpose = self
        size = (pattern.row_ptr if transpose else pattern.column_ptr).shape[0] - 1
        check_values("values", values, pattern.columns.shape[0])
        check_shape("x", x, *values.shape[:-1], size, x.shape[-1])


class _Samples(NamedTuple):
    pattern: Pattern
    a: Tensor  # [R, C] or [V, R, C]
    b: Tensor  # [N, C] or [V, N, C]

    def check(self) -> None:
        """Raise a ValueError unless shapes match."""
        pattern, a, b = self
        heads, width = a.shape[:-2], a.shape[-1]
        check_shape("a", a, *heads, pattern.row_ptr.shape[0] - 1, width)
        check_shape("b", b, *heads, pattern.column_ptr.shape[0] - 1, width)


def _spmm(product: _Product) -> Tensor:
    pattern, values, x, transpose = product
    entries = (pattern.column_ptr, pattern.rows) if transpose else (pattern.row_ptr, pattern.columns)
    values = values[..., pattern.order] if transpose else values
    if x.ndim == 3:
        return implementation(__name__, x).spmm(*entries, values, x)
    # Made contiguous before it gets another axis: torch transposes matrices faster than batches of them.
    x = x.contiguous()
    return implementation(__name__, x).spmm(*entries, values[None], x[None])[0]


def _spmm_fake(product: _Product) -> Tensor:
    pattern, _, x, transpose = product
    num_rows = (pattern.column_ptr if transpose else pattern.row_ptr).shape[0] - 1
    return x.new_empty(*x.shape[:-2], num_rows, x.shape[-1])


def _spmm_backward(
    product: _Product, outputs: tuple[Tensor, ...], grad: Tensor, wanted: Collection[str]
) -> dict[str, Tensor]:
    pattern, _, x, transpose = product
    grads = {}
    if "values" in wanted:
        grads["values"] = _sddmm_op(_Samples(pattern, *((x, grad) if transpose else (grad, x))))
    if "x" in wanted:
        grads["x"] = _spmm_op(product._replace(x=grad, transpose=not transpose))
    return grads


def _sddmm(samples: _Samples) -> Tensor:
    pattern, a, b = samples
    entries = (pattern.row_ptr, pattern.columns)
    if a.ndim == 3:
        return implementation(__name__, a).sddmm(*entries, a, b)
    return implementation(__name__, a).sddmm(*entries, a.contiguous()[None], b.contiguous()[None])[0]


def _sddmm_fake(samples: _Samples) -> Tensor:
    return samples.a.new_empty(*samples.a.shape[:-2], samples.pattern.columns.shape[0])


def _sddmm_backward(
    samples: _Samples, _: tuple[Tensor, ...], grad: Tensor, wanted: Collection[str]
) -> dict[str, Tensor]:
    grads = {}
    if "a" in wanted:
        grads["a"] = _spmm_op(_Product(samples.pattern, grad, samples.b, transpose=False))
    if "b" in wanted:
        grads["b"] = _spmm_op(_Product(samples.pattern, grad, samples.a, transpose=True))
    return grads


_spmm_op = Op("spmm", _Product, _spmm, _spmm_fake, gradients=("values", "x"), backward=_spmm_backward)
_sddmm_op = Op("sddmm", _Samples, _sddmm, _sddmm_fake, gradients=("a", "b"), backward=_sddmm_backward)


def spmm(pattern: Pattern, values: Tensor, x: Tensor, transpose: bool = False) -> Tensor:
    """Multiply a sparse matrix [R, N], or its transpose, by a dense one; differentiable in both.

    Sums are accumulated in at least float32; the result has the precision of ``x``.

    Args:
        pattern: Pattern of the sparse matrix, [R, N].
        values: Entries of the sparse matrix, [P]; or those of every head, [V, P].
        x: [N, C], or [V, N, C]; with R in place of N for the transpose.
        transpose: Whether to multiply by the transpose.

    Returns:
        [R, C], or [V, R, C]; with N in place of R for the transpose.
    """
    # The compiler supports the fields of a pattern, but not always its properties.
    # Not len(): it would make the size a constant in a traced backward pass.
    count = (pattern.row_ptr if transpose else pattern.column_ptr).shape[0] - 1
    if x.ndim != values.ndim + 1 or x.shape[:-1] != (*values.shape[:-1], count):
        wanted = ", ".join(str(size) for size in (*values.shape[:-1], count))
        raise ValueError(
            f"`x` must have shape [{wanted}, C] to be multiplied by a sparse matrix of {count} columns with values of "
            f"shape {tuple(values.shape)}, but has shape {tuple(x.shape)}. Pass one row per column of the matrix: one "
            "per node of a graph, or per feature."
        )
    wide = torch.promote_types(x.dtype, torch.float32)
    return _spmm_op(_Product(pattern, values.to(wide), x.to(wide), transpose)).to(x.dtype)


def sddmm(pattern: Pattern, a: Tensor, b: Tensor) -> Tensor:
    """Return the entries of ``a @ b.mT`` at those of a pattern; differentiable in both.

    Args:
        pattern: Which entries to compute, [R, N].
        a: [R, C], or [V, R, C].
        b: [N, C], or [V, N, C].

    Returns:
        [P], or [V, P].
    """
    return _sddmm_op(_Samples(pattern, a, b))
