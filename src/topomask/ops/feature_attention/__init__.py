"""Attention over the entries of a mask that is a product of sparse features, M = Phi_q Phi_k^T, without forming it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from topomask.ops.backend import compiled, in_float32
from topomask.ops.feature_attention import reference
from topomask.ops.feature_attention.reference import Features
from topomask.ops.sparse_product import Pattern

_PATTERN = 5
_NUM_FEATURES = 4


def fits(*tensors: Tensor) -> bool:
    """Whether there is a compiled kernel for these tensors; without one, forming the entries once is faster."""
    return compiled(*tensors) and all(tensor.dtype == torch.float32 for tensor in tensors)


@torch.library.custom_op("topomask::feature_attention", mutates_args=())
def _feature_attention(
    row_ptr: Tensor,
    columns: Tensor,
    column_ptr: Tensor,
    rows: Tensor,
    num_keys: int,
    query: Tensor,
    query_sizes: Tensor,
    key: Tensor,
    key_sizes: Tensor,
    weights: Tensor,
    sizes: Tensor,
    order: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_key: Tensor,
    softmax: bool,
    normalize: bool,
) -> tuple[Tensor, Tensor]:
    features = Features(row_ptr, columns, column_ptr, rows, num_keys, query, query_sizes, key, key_sizes)
    if not len(weights) and not fits(query, q, k, v):
        return reference.feature_attention(features, q, k, v, is_key, softmax, normalize)
    from topomask.ops.feature_attention import numba

    return numba.feature_attention(features, numba.Packed(weights, sizes, order), q, k, v, is_key, softmax, normalize)


@_feature_attention.register_fake
def _(*args: Any) -> tuple[Tensor, Tensor]:
    q, v = args[12], args[14]
    return q.new_empty(q.shape[0], q.shape[1], v.shape[2]), q.new_empty(q.shape[0], q.shape[1])


@torch.library.custom_op("topomask::feature_attention_backward", mutates_args=())
def _feature_attention_backward(
    grad: Tensor,
    out: Tensor,
    denominator: Tensor,
    row_ptr: Tensor,
    columns: Tensor,
    column_ptr: Tensor,
    rows: Tensor,
    num_keys: int,
    query: Tensor,
    query_sizes: Tensor,
    key: Tensor,
    key_sizes: Tensor,
    weights: Tensor,
    sizes: Tensor,
    order: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_key: Tensor,
    softmax: bool,
    normalize: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    features = Features(row_ptr, columns, column_ptr, rows, num_keys, query, query_sizes, key, key_sizes)
    if not len(weights) and not fits(grad, query, q, k, v):
        return reference.feature_attention_backward(features, q, k, v, is_key, softmax, normalize, grad)
    from topomask.ops.feature_attention import numba

    packed, outputs = numba.Packed(weights, sizes, order), (grad, out, denominator)
    return numba.feature_attention_backward(features, packed, q, k, v, is_key, softmax, normalize, *outputs)


@_feature_attention_backward.register_fake
def _(*args: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (*args[8:12], *args[15:18]))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.num_keys, ctx.flags = inputs[4], inputs[-2:]
    ctx.save_for_backward(*output, *inputs[:4], *inputs[5:-2])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    """The denominator is returned for this function alone: nothing flows back through it."""
    if grad is None:
        return (None,) * 18
    saved = ctx.saved_tensors
    grads = _feature_attention_backward(grad, *saved[:6], ctx.num_keys, *saved[6:], *ctx.flags)
    return (None,) * _PATTERN + tuple(grads[:_NUM_FEATURES]) + (None,) * 3 + tuple(grads[_NUM_FEATURES:]) + (None,) * 3


_feature_attention.register_autograd(_backward, setup_context=_save)
in_float32(_feature_attention)


class FeatureValues(NamedTuple):
    """Entries of the features of queries and keys."""

    query: Tensor
    key: Tensor
    # Those that the normaliser takes, where they differ.
    query_sizes: Tensor | None = None
    key_sizes: Tensor | None = None


class PackedWeights:
    """The entries of a product of features in the layout of the kernels, for features that do not change.

    The layout follows from the features and the order of rows, which is therefore kept with them.
    """

    def __init__(self, query: Pattern, key: Pattern, values: FeatureValues) -> None:
        from topomask.ops.feature_attention import numba

        self.weights, self.sizes, self.order = numba.pack(Features(*_inputs(query, key, values)[:9]))


def _inputs(query: Pattern, key: Pattern, features: FeatureValues | PackedWeights) -> tuple[Any, ...]:
    """What the op takes before q, k and v; features that are packed need no values."""
    patterns = (query.row_ptr, query.columns, key.column_ptr, key.rows, key.shape[0])
    if isinstance(features, PackedWeights):
        none = features.weights.new_empty(0)
        return *patterns, none, none, none, none, features.weights, features.sizes, features.order
    none = features.query.new_empty(0)
    values = (features.query, none, features.key[key.order], none)
    if features.query_sizes is not None and features.key_sizes is not None:
        values = (features.query, features.query_sizes, features.key[key.order], features.key_sizes[key.order])
    return *patterns, *values, none, none, none


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
) -> Tensor:
    """As :func:`topomask.ops.pair_attention.pair_attention` over the entries of Phi_q Phi_k^T.

    Args:
        query: Where the features of queries have entries, [R, C].
        key: Where those of keys do, [N, C].
        features: Their entries, or what these make, packed before; they then get no gradient.
        q: Queries, or their features, [B, R, M].
        k: Keys, or their features, [B, N, M].
        v: Values, [B, N, D].
        is_key: Which keys count in softmax attention, [B, N]. Default: all.
        softmax: Whether to take exponentials of scores.
        normalize: Whether to divide by the normaliser; 0 where it is 0.

    Returns:
        [B, R, D].
    """
    keep = q.new_empty(0, 0, dtype=torch.bool) if is_key is None else is_key
    return _feature_attention(*_inputs(query, key, features), q, k, v, keep, softmax, normalize)[0]
