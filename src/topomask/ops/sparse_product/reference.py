"""Products with a sparse matrix in compressed sparse rows; pure torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from topomask.ops import segments

# The most gathered numbers in memory at a time.
_ELEMENTS_PER_CHUNK = 1 << 22


def by_column(row_ptr: Tensor, columns: Tensor, column_ptr: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row of every entry in column order, and its place in row order."""
    order = columns.argsort(stable=True)
    rows = segments.index(row_ptr)[order].to(columns.dtype)
    return rows, order.to(segments.index_type(len(columns)))


def spmm(row_ptr: Tensor, columns: Tensor, values: Tensor, x: Tensor) -> Tensor:
    """Multiply sparse matrices [R, N] of one pattern, ``values`` [V, P], by ``x`` [V, N, C]; returns [V, R, C]."""
    num_rows = len(row_ptr) - 1
    if not len(columns) or not x.numel():
        return x.new_zeros(len(x), num_rows, x.shape[2])
    # The product is a weighted sum of rows: torch's embedding bag computes it without an intermediate of size [P, C].
    products = [
        F.embedding_bag(
            columns,
            x_head.contiguous(),
            row_ptr.to(columns.dtype),
            mode="sum",
            per_sample_weights=values_head.contiguous(),
            include_last_offset=True,
        )
        for values_head, x_head in zip(values, x, strict=True)
    ]
    return torch.stack(products)


def sddmm(row_ptr: Tensor, columns: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return the entries of ``a @ b.mT`` at those of a pattern, [V, P], for a [V, R, C] and b [V, N, C]."""
    out = a.new_empty(len(a), len(columns))
    rows = segments.index(row_ptr)
    step = max(1, _ELEMENTS_PER_CHUNK // max(1, a.shape[2]))
    for head in range(len(a)):
        for start in range(0, len(columns), step):
            part = slice(start, start + step)
            torch.sum(a[head, rows[part]] * b[head, columns[part]], dim=1, out=out[head, part])
    return out
