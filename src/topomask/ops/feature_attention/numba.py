"""Attention over a product of sparse features, compiled: tile by tile, so it needs no more memory than the features."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from topomask.ops import tiles
from topomask.ops.feature_attention import Attention, Packed, PackedAttention
from topomask.ops.pair_values import Factors
from topomask.ops.sparse_product import row_order
from topomask.ops.tiles.layout import Layout, make_layout
from topomask.ops.tiles.records import FeatureGradients, Source

# Layouts by the columns of the queries' features, then by the rows of the keys' features.
_layouts: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def _layout(factors: Factors, order: Tensor | None = None) -> Layout:
    """Return the tiles of a product, cached as long as its features live; with rows in ``order`` if that is given."""
    by_rows = _layouts.setdefault(factors.columns, WeakTensorKeyDictionary())
    kept = by_rows.get(factors.rows)
    if kept is not None and (order is None or torch.equal(_order(kept), order)):
        return kept
    row_ptr, columns, column_ptr, rows, num_keys = factors
    if order is None:
        order = row_order(row_ptr, columns, len(column_ptr) - 1)
    by_rows[rows] = make_layout(row_ptr, columns, num_keys, column_ptr, rows, order)
    return by_rows[rows]


def _order(layout: Layout) -> Tensor:
    return torch.from_numpy(layout.tiles.order[: layout.tiles.num_rows])


def _tokens(attention: Attention | PackedAttention) -> tiles.Attention:
    q, k, v, is_key = attention.q, attention.k, attention.v, attention.is_key
    return tiles.Attention(q, k, v, is_key, attention.softmax, attention.normalize)


def _prepare(attention: Attention) -> tuple[Layout, Source, tiles.Attention]:
    """Return the arguments of the tile kernels."""
    factors, query, query_magnitudes, key, key_magnitudes = attention[:5]
    row_ptr, columns, column_ptr, rows, _ = factors
    source = tiles.from_features(row_ptr, columns, query, query_magnitudes, column_ptr, rows, key, key_magnitudes)
    return _layout(factors), source, _tokens(attention)


def _prepare_packed(attention: PackedAttention) -> tuple[Layout, Source, tiles.Attention]:
    packed = attention.packed
    source = tiles.from_packed(packed.weights, packed.magnitudes)
    return _layout(attention.factors, packed.order), source, _tokens(attention)


def pack(
    factors: Factors,
    query_values: Tensor,
    query_magnitudes: Tensor | None,
    key_values: Tensor,
    key_magnitudes: Tensor | None,
) -> Packed:
    """Pack the product of features, for features that do not change."""
    row_ptr, columns, column_ptr, rows, num_keys = factors
    source = tiles.from_features(
        row_ptr, columns, query_values, query_magnitudes, column_ptr, rows, key_values, key_magnitudes
    )
    layout = _layout(factors)
    return Packed(*tiles.pack_features(layout, source, num_keys), _order(layout))


def feature_attention(attention: Attention) -> tuple[Tensor, Tensor]:
    """Attention [G, R, D] and its denominator [G, R]."""
    return tiles.forward(*_prepare(attention))


def feature_attention_backward(
    attention: Attention, outputs: tuple[Tensor, ...], grad: Tensor, wanted: Collection[str]
) -> dict[str, Tensor]:
    """Return the gradients of the values of features, and of q, k and v."""
    wants_features = not {"q", "k", "v"}.issuperset(wanted)
    found = tiles.backward(*_prepare(attention), outputs, grad, wants_features)
    grads = {"q": found.q, "k": found.k, "v": found.v}
    if wants_features:
        source = found.source
        assert isinstance(source, FeatureGradients)
        by_query = {"query_values": source.query_values, "query_magnitudes": source.query_magnitudes}
        parts = {"key_values": source.key_values, "key_magnitudes": source.key_magnitudes}
        by_key = {name: tiles.sum_blocks(part) for name, part in parts.items()}
        for name, array in (by_query | by_key).items():
            if name in wanted:
                grads[name] = torch.from_numpy(array).view(getattr(attention, name).shape)
    return grads


def packed_attention(attention: PackedAttention) -> tuple[Tensor, Tensor]:
    """Attention [G, R, D] and its denominator [G, R]."""
    return tiles.forward(*_prepare_packed(attention))


def packed_attention_backward(
    attention: PackedAttention, outputs: tuple[Tensor, ...], grad: Tensor, wanted: Collection[str]
) -> dict[str, Tensor]:
    """Return the gradients of q, k and v."""
    found = tiles.backward(*_prepare_packed(attention), outputs, grad, wants_source=False)
    return {"q": found.q, "k": found.k, "v": found.v}
