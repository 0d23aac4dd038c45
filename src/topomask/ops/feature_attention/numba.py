"""Attention over a product of sparse features, compiled: tile by tile, so that memory is that of the features."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from topomask.ops import tiles
from topomask.ops.feature_attention.reference import Features
from topomask.ops.locality import row_order
from topomask.ops.tiles.layout import Layout, make_layout

# Layouts by the columns of the queries' features, then by the rows of the keys' features.
_layouts: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def _layout(
    row_ptr: Tensor, columns: Tensor, column_ptr: Tensor, rows: Tensor, num_keys: int, order: Tensor | None = None
) -> Layout:
    """Tiles of a product, kept as long as its features are; with rows in ``order`` where that is given."""
    by_rows = _layouts.setdefault(columns, WeakTensorKeyDictionary())
    kept = by_rows.get(rows)
    if kept is not None and (order is None or torch.equal(kept.order[: kept.num_rows], order)):
        return kept
    if order is None:
        order = row_order(row_ptr, columns, len(column_ptr) - 1)
    by_rows[rows], _ = make_layout(row_ptr, columns, num_keys, column_ptr, rows, order)
    return by_rows[rows]


class Packed(NamedTuple):
    """Weights and sizes of all tiles, and the order of rows that they belong to; empty where nothing was packed."""

    weights: Tensor
    sizes: Tensor
    order: Tensor


def _prepare(features: Features, packed: Packed) -> tuple[Layout, tiles.Source]:
    """The tiles, and where their weights come from."""
    row_ptr, columns, column_ptr, rows, num_keys, query, query_sizes, key, key_sizes = features
    pattern = (row_ptr, columns, column_ptr, rows)
    if len(packed.weights):
        return _layout(*pattern, num_keys, packed.order), tiles.from_packed(packed.weights, packed.sizes)
    source = tiles.from_features(row_ptr, columns, query, query_sizes, column_ptr, rows, key, key_sizes)
    return _layout(*pattern, num_keys), source


def pack(features: Features) -> Packed:
    """What the features make, for features that do not change."""
    nothing = features.query.new_empty(0)
    layout, source = _prepare(features, Packed(nothing, nothing, nothing))
    return Packed(*tiles.pack_features(layout, source, features.num_keys), layout.order[: layout.num_rows])


def feature_attention(
    features: Features,
    packed: Packed,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_key: Tensor,
    softmax: bool,
    normalize: bool,
) -> tuple[Tensor, Tensor]:
    """Attention [B, R, D] and its denominator [B, R]; values of keys come in column order."""
    return tiles.forward(*_prepare(features, packed), q, k, v, is_key, softmax, normalize)


def feature_attention_backward(
    features: Features,
    packed: Packed,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_key: Tensor,
    softmax: bool,
    normalize: bool,
    grad: Tensor,
    out: Tensor,
    denominator: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients in the four sets of feature values, and in q, k and v."""
    grads, grad_q, grad_k, grad_v = tiles.backward(
        *_prepare(features, packed), q, k, v, is_key, softmax, normalize, grad, out, denominator
    )
    if not grads:
        grads = [torch.zeros_like(x) for x in features[5:]]
    return grads[0], grads[1], grads[2], grads[3], grad_q, grad_k, grad_v
