"""Attention over the entries of a mask that is a product of sparse features, M = Phi_q Phi_k^T, without forming it."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from topomask.ops.backend import compiled, implementation
from topomask.ops.pair_attention import check_heads, check_tokens
from topomask.ops.pair_values import Factors, join_factors
from topomask.ops.quotient import Attended
from topomask.ops.registration import Op, check_shape, check_values
from topomask.ops.sparse_product import Pattern


class Attention(NamedTuple):
    """Inputs of attention over a product of features; item g of the batch uses row g % V of all values."""

    factors: Factors  # [R, C] and [N, C]
    query_values: Tensor  # [P_q] or [V, P_q]
    query_magnitudes: Tensor | None  # used by the normaliser instead of values
    key_values: Tensor  # [P_k] or [V, P_k], by column
    key_magnitudes: Tensor | None
    q: Tensor  # [G, R, M]
    k: Tensor  # [G, N, M]
    v: Tensor  # [G, N, D]
    is_key: Tensor | None  # [G, N]
    softmax: bool
    normalize: bool

    def check(self) -> None:
        """Raise a ValueError unless shapes match."""
        factors, query, _, key, *_ = self
        check_values("query_values", query, factors.columns.shape[0])
        check_shape("key_values", key, *query.shape[:-1], factors.rows.shape[0])
        for name, magnitudes, values in zip(("query", "key"), self[2:5:2], self[1:4:2], strict=True):
            if magnitudes is not None:
                check_shape(f"{name}_magnitudes", magnitudes, *values.shape)
        check_tokens(factors.row_ptr.shape[0] - 1, factors.num_keys, self.q, self.k, self.v, self.is_key)
        check_heads("features.query", query, self.q)


class Packed(NamedTuple):
    """Weights and magnitudes of all tiles, [V, ...], and the order of rows that they belong to."""

    weights: Tensor
    magnitudes: Tensor | None
    order: Tensor  # [R]


class PackedAttention(NamedTuple):
    """Inputs of attention over a packed product of features; item g of the batch uses row g % V of the weights."""

    factors: Factors  # [R, C] and [N, C]
    packed: Packed
    q: Tensor  # [G, R, M]
    k: Tensor  # [G, N, M]
    v: Tensor  # [G, N, D]
    is_key: Tensor | None  # [G, N]
    softmax: bool
    normalize: bool

    def check(self) -> None:
        """Raise a ValueError unless shapes match."""
        num_rows = self.factors.row_ptr.shape[0] - 1
        check_shape("order", self.packed.order, num_rows)
        check_tokens(num_rows, self.factors.num_keys, self.q, self.k, self.v, self.is_key)
        check_heads("features.weights", self.packed.weights, self.q)


def fits(*tensors: Tensor) -> bool:
    """Whether there is a compiled kernel for these tensors; without one, computing the entries once is faster."""
    return compiled(*tensors, dtype=torch.float32)


def _forward(attention: Attention) -> tuple[Tensor, Tensor]:
    tensors = (attention.query_values, attention.q, attention.k, attention.v)
    return implementation(__name__, *tensors, dtype=torch.float32).feature_attention(attention)


def _fake(attention: Attention | PackedAttention) -> tuple[Tensor, Tensor]:
    q, v = attention.q, attention.v
    return q.new_empty(*q.shape[:2], v.shape[2]), q.new_empty(q.shape[:2])


def _backward(
    attention: Attention, outputs: tuple[Tensor, ...], grad: Tensor, wanted: Collection[str]
) -> dict[str, Tensor]:
    tensors = (grad, attention.query_values, attention.q, attention.k, attention.v)
    backend = implementation(__name__, *tensors, dtype=torch.float32)
    return backend.feature_attention_backward(attention, outputs, grad, wanted)


def _forward_packed(attention: PackedAttention) -> tuple[Tensor, Tensor]:
    from topomask.ops.feature_attention import numba

    return numba.packed_attention(attention)


def _backward_packed(
    attention: PackedAttention, outputs: tuple[Tensor, ...], grad: Tensor, wanted: Collection[str]
) -> dict[str, Tensor]:
    from topomask.ops.feature_attention import numba

    return numba.packed_attention_backward(attention, outputs, grad, wanted)


_VALUES = ("query_values", "query_magnitudes", "key_values", "key_magnitudes")
_feature_attention = Op(
    "feature_attention",
    Attention,
    _forward,
    _fake,
    gradients=(*_VALUES, "q", "k", "v"),
    backward_kernel=_backward,
    items=("q", "k", "v", "is_key"),
)
_packed_attention = Op(
    "packed_attention",
    PackedAttention,
    _forward_packed,
    _fake,
    gradients=("q", "k", "v"),
    backward_kernel=_backward_packed,
    items=("q", "k", "v", "is_key"),
)


class FeatureValues(NamedTuple):
    """Entries of the features of queries, [P_q], and of keys, [P_k]; or [V, P_q] and [V, P_k] for V heads."""

    query: Tensor
    key: Tensor
    # Entries for the normaliser, if they differ.
    query_magnitudes: Tensor | None = None
    key_magnitudes: Tensor | None = None


class PackedWeights:
    """The entries of a product of features in the layout of the kernels, for features that do not change.

    The layout depends on the features and on the order of rows, which is therefore stored with them.
    """

    def __init__(self, query: Pattern, key: Pattern, values: FeatureValues) -> None:
        from topomask.ops.feature_attention import numba

        query.check()
        key.check()
        self.packed: Packed = numba.pack(join_factors(query, key), *_by_column(key, values))


def _by_column(key: Pattern, values: FeatureValues) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """Return values and magnitudes of queries, followed by those of keys in column order."""
    query, key_values, query_magnitudes, key_magnitudes = values
    key_values = key_values[..., key.order]
    if query_magnitudes is None or key_magnitudes is None:
        return query, None, key_values, None
    return query, query_magnitudes, key_values, key_magnitudes[..., key.order]


def feature_attention(
    query: Pattern,
    key: Pattern,
    features: FeatureValues | PackedWeights,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    is_key: Tensor | None = None,
    softmax: bool = False,
    normalize: bool = True,
) -> Attended:
    """Attend like :func:`topomask.ops.pair_attention.pair_attention`, over the entries of Phi_q Phi_k^T.

    Args:
        query: Pattern of the features of queries, [R, C].
        key: Pattern of the features of keys, [N, C].
        features: Entries of the features; or packed weights, which get no gradient. With V rows of entries, item g of
            the batch uses row g % V.
        q: Queries, or their features, [G, R, M].
        k: Keys, or their features, [G, N, M].
        v: Values, [G, N, D].
        is_key: Which keys softmax attention uses, [G, N]. Default: all.
        softmax: Whether to use the exponentials of scores.
        normalize: Whether to divide by the normaliser; the result is 0 where it is 0.

    Returns:
        The result, [G, R, D], and the normaliser, [G, R], which softmax attention returns up to a factor per row.
    """
    factors, tokens = join_factors(query, key), (q, k, v, is_key)
    if not torch.compiler.is_compiling():
        key.check()
    if isinstance(features, PackedWeights):
        packed = PackedAttention(factors, features.packed, *tokens, softmax, normalize)
        return Attended(*_packed_attention.outputs(packed))
    attention = Attention(factors, *_by_column(key, features), *tokens, softmax, normalize)
    return Attended(*_feature_attention.outputs(attention))
