"""Products with a sparse matrix in compressed sparse rows; pure torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from topomask.ops import segments

# Gathered numbers that exist at a time.
_ELEMENTS_PER_CHUNK = 1 << 22


def by_column(row_ptr: Tensor, columns: Tensor, column_ptr: Tensor) -> tuple[Tensor, Tensor]:
    """The row of every entry in the order of columns, and its place in the order of rows."""
    order = columns.argsort(stable=True)
    rows = segments.index(row_ptr)[order].to(columns.dtype)
    return rows, order.to(segments.index_type(len(columns)))


def spmm(row_ptr: Tensor, columns: Tensor, values: Tensor, x: Tensor) -> Tensor:
    """A sparse matrix [R, N] with ``values`` [P] times ``x`` [N, C]."""
    if not len(columns) or not x.shape[1]:
        return x.new_zeros(len(row_ptr) - 1, x.shape[1])
    # A weighted sum of looked-up rows: torch's embedding bag is that product without an intermediate of size [P, C].
    return F.embedding_bag(
        columns,
        x.contiguous(),
        row_ptr.to(columns.dtype),
        mode="sum",
        per_sample_weights=values.contiguous(),
        include_last_offset=True,
    )


def sddmm(row_ptr: Tensor, columns: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The entries of ``a @ b.T`` at the places of a sparse pattern, [P], for a [R, C] and b [N, C]."""
    out = a.new_empty(len(columns))
    rows = segments.index(row_ptr)
    step = max(1, _ELEMENTS_PER_CHUNK // max(1, a.shape[1]))
    for start in range(0, len(columns), step):
        part = slice(start, start + step)
        torch.sum(a[rows[part]] * b[columns[part]], dim=1, out=out[part])
    return out
