"""Attention over a product of sparse features; pure torch, by way of its entries."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from topomask.ops.pair_attention import reference as pair_attention
from topomask.ops.pair_values import reference as pair_values
from topomask.ops.sparse_product import Pattern, make_pattern


class Features(NamedTuple):
    """Features of queries [R, C], and those of keys [N, C] by column, with their values.

    Sizes are what the normaliser takes; they are empty where they are the values.
    """

    row_ptr: Tensor
    columns: Tensor
    column_ptr: Tensor
    rows: Tensor
    num_keys: int
    query: Tensor
    query_sizes: Tensor
    key: Tensor
    key_sizes: Tensor


def _entries(features: Features) -> tuple[Pattern, Tensor, Tensor]:
    pattern, num_keys = features[:4], features.num_keys
    pairs = make_pattern(*pair_values.pair_pattern(*pattern, num_keys), num_keys)
    place = (pairs.row_ptr, pairs.columns, *pattern, num_keys)
    values, sizes = pair_values.pair_values(*place, features.query, features.key), features.query_sizes
    return pairs, values, pair_values.pair_values(*place, sizes, features.key_sizes) if len(sizes) else sizes


def feature_attention(
    features: Features,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_key: Tensor,
    softmax: bool,
    normalize: bool,
) -> tuple[Tensor, Tensor]:
    """Attention [B, R, D] and its denominator [B, R]; values of keys come in column order."""
    return pair_attention.pair_attention(*_entries(features), q, k, v, is_key, softmax, False, normalize)


def feature_attention_backward(
    features: Features,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_key: Tensor,
    softmax: bool,
    normalize: bool,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients in the four sets of feature values, and in q, k and v."""
    pairs, values, sizes = _entries(features)
    grad_values, grad_sizes, *others = pair_attention.pair_attention_backward(
        grad, pairs, values, sizes, q, k, v, is_key, softmax, False, normalize
    )
    place = (pairs.row_ptr, pairs.columns, *features[:4], features.num_keys)
    _, query_sizes, _, key_sizes = features[5:]
    grad_query, grad_key = pair_values.pair_values_backward(grad_values, *place, features.query, features.key)
    grad_query_sizes, grad_key_sizes = torch.zeros_like(query_sizes), torch.zeros_like(key_sizes)
    if len(query_sizes):
        grad_query_sizes, grad_key_sizes = pair_values.pair_values_backward(grad_sizes, *place, query_sizes, key_sizes)
    return grad_query, grad_query_sizes, grad_key, grad_key_sizes, others[0], others[1], others[2]
