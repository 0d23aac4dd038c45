"""Attention over a product of sparse features; pure torch, by way of its entries."""

from __future__ import annotations

import torch
from torch import Tensor

from topomask.ops.pair_attention import reference as pair_attention
from topomask.ops.pair_values import reference as pair_values
from topomask.ops.sparse_product import Pattern, make_pattern


def _entries(
    row_ptr: Tensor,
    columns: Tensor,
    column_ptr: Tensor,
    rows: Tensor,
    num_keys: int,
    query: Tensor,
    query_sizes: Tensor,
    key: Tensor,
    key_sizes: Tensor,
) -> tuple[Pattern, Tensor, Tensor]:
    features = (row_ptr, columns, column_ptr, rows)
    pairs = make_pattern(*pair_values.pair_pattern(*features, num_keys), num_keys)
    place = (pairs.row_ptr, pairs.columns, *features, num_keys)
    values = pair_values.pair_values(*place, query, key)
    return pairs, values, pair_values.pair_values(*place, query_sizes, key_sizes) if len(query_sizes) else query_sizes


def feature_attention(
    row_ptr: Tensor,
    columns: Tensor,
    column_ptr: Tensor,
    rows: Tensor,
    num_keys: int,
    query: Tensor,
    query_sizes: Tensor,
    key: Tensor,
    key_sizes: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_key: Tensor,
    softmax: bool,
    normalize: bool,
) -> tuple[Tensor, Tensor]:
    """Attention [B, R, D] and its denominator [B, R]; values of keys come in column order."""
    entries = _entries(row_ptr, columns, column_ptr, rows, num_keys, query, query_sizes, key, key_sizes)
    return pair_attention.pair_attention(*entries, q, k, v, is_key, softmax, False, normalize)


def feature_attention_backward(
    row_ptr: Tensor,
    columns: Tensor,
    column_ptr: Tensor,
    rows: Tensor,
    num_keys: int,
    query: Tensor,
    query_sizes: Tensor,
    key: Tensor,
    key_sizes: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_key: Tensor,
    softmax: bool,
    normalize: bool,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients in the four sets of feature values, and in q, k and v."""
    features = (row_ptr, columns, column_ptr, rows)
    pairs, values, sizes = _entries(*features, num_keys, query, query_sizes, key, key_sizes)
    grad_values, grad_sizes, *others = pair_attention.pair_attention_backward(
        grad, pairs, values, sizes, q, k, v, is_key, softmax, False, normalize
    )
    place = (pairs.row_ptr, pairs.columns, *features, num_keys)
    grad_query, grad_key = pair_values.pair_values_backward(grad_values, *place, query, key)
    grad_query_sizes, grad_key_sizes = torch.zeros_like(query_sizes), torch.zeros_like(key_sizes)
    if len(query_sizes):
        grad_query_sizes, grad_key_sizes = pair_values.pair_values_backward(grad_sizes, *place, query_sizes, key_sizes)
    return grad_query, grad_query_sizes, grad_key, grad_key_sizes, others[0], others[1], others[2]
