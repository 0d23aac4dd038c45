"""The entries of a mask that is a product of sparse features, M = Phi_q Phi_k^T."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.backend import implementation
from topomask.ops.registration import Op, check_shape, check_values
from topomask.ops.sparse_product import Pattern, check_rows, make_pattern


class Factors(NamedTuple):
    """The pattern of the features of queries [R, C], by row, and of the features of keys [N, C], by column."""

    row_ptr: Tensor  # [R + 1]
    columns: Tensor  # [P_q]
    column_ptr: Tensor  # [C + 1]
    rows: Tensor  # [P_k]
    num_keys: int

    def check(self) -> None:
        """Raise a ValueError unless all rows and columns are in range."""
        segments.check_once(_check_factors, self[:4], self.num_keys)


def _check_factors(row_ptr: Tensor, columns: Tensor, column_ptr: Tensor, rows: Tensor, num_keys: int) -> None:
    check_rows(row_ptr, columns, len(column_ptr) - 1)
    check_rows(column_ptr, rows, num_keys, names=("column_ptr", "rows"))


class Product(NamedTuple):
    """The pattern of the product of features, and the values of its factors."""

    row_ptr: Tensor  # [R + 1]
    columns: Tensor  # [P], ascending in every row
    factors: Factors
    query_values: Tensor  # [P_q] or [V, P_q]
    key_values: Tensor  # [P_k] or [V, P_k], by column

    def check(self) -> None:
        """Raise a ValueError unless indices are in range and shapes match."""
        segments.check_once(check_rows, (self.row_ptr, self.columns), self.factors.num_keys)
        check_shape("row_ptr", self.row_ptr, *self.factors.row_ptr.shape)
        check_values("query_values", self.query_values, self.factors.columns.shape[0])
        check_shape("key_values", self.key_values, *self.query_values.shape[:-1], self.factors.rows.shape[0])


def _forward(product: Product) -> Tensor:
    return implementation(__name__, product.query_values).pair_values(product)


def _fake(product: Product) -> Tensor:
    return product.query_values.new_empty(*product.query_values.shape[:-1], product.columns.shape[0])


def _backward(product: Product, _: tuple[Tensor, ...], grad: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
    return implementation(__name__, product.query_values).pair_values_backward(product, grad)


_pair_values = Op(
    "pair_values", Product, _forward, _fake, gradients=("query_values", "key_values"), backward_kernel=_backward
)


def join_factors(query: Pattern, key: Pattern) -> Factors:
    """Combine the patterns [R, C] and [N, C] of features, for the kernels of their product."""
    return Factors(query.row_ptr, query.columns, key.column_ptr, key.rows, key.shape[0])


def count_triples(query: Pattern, key: Pattern) -> int:
    """Count pairs of entries (i, c), (j, c): the multiply-adds of the product, and a bound on its number of entries."""
    return int(query.column_ptr.diff() @ key.column_ptr.diff())


def estimate_pairs(query: Pattern, key: Pattern, num_rows: int = 64) -> int:
    """Estimate the number of entries of the product from a sample of rows."""
    query.check()
    key.check()
    total = query.shape[0]
    if not total:
        return 0
    rows = torch.linspace(0, total - 1, min(num_rows, total), device=query.row_ptr.device).round().to(torch.int64)
    counts = query.row_ptr.diff()[rows]
    columns = query.columns[segments.ranges(query.row_ptr[rows], counts)]
    sample = join_factors(query, key)._replace(row_ptr=segments.pointers(counts), columns=columns)
    found = implementation(__name__, query.columns).count_pairs(sample)
    return round(int(found.sum()) * total / len(rows))


def pair_pattern(query: Pattern, key: Pattern) -> Pattern:
    """Return the pattern of Phi_q Phi_k^T for features with patterns [R, C] and [N, C]."""
    query.check()
    key.check()
    row_ptr, columns = implementation(__name__, query.columns).pair_pattern(join_factors(query, key))
    return make_pattern(row_ptr, columns, key.shape[0])


def pair_values(pairs: Pattern, query: Pattern, key: Pattern, query_values: Tensor, key_values: Tensor) -> Tensor:
    """Return the values of Phi_q Phi_k^T on its pattern ``pairs``; differentiable in both sets of values.

    Args:
        pairs: Pattern of the product, [R, N].
        query: Pattern of Phi_q, [R, C].
        key: Pattern of Phi_k, [N, C].
        query_values: Entries of Phi_q, [P_q]; or those of every head, [V, P_q].
        key_values: Entries of Phi_k, [P_k]; or [V, P_k].

    Returns:
        [P], or [V, P].
    """
    if not torch.compiler.is_compiling():
        key.check()
    factors = join_factors(query, key)
    return _pair_values(Product(pairs.row_ptr, pairs.columns, factors, query_values, key_values[..., key.order]))
