"""Attention over a product of sparse features; pure torch, computes the entries of the product."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from torch import Tensor

from topomask.ops.feature_attention import Attention
from topomask.ops.pair_attention import Attention as PairAttention
from topomask.ops.pair_attention import reference as pair_attention
from topomask.ops.pair_values import Product
from topomask.ops.pair_values import reference as pair_values
from topomask.ops.sparse_product import make_pattern


class _Products(NamedTuple):
    values: Product
    magnitudes: Product | None


def _products(attention: Attention) -> _Products:
    """Return the products whose values are the entries of the mask, and those of its magnitude."""
    place = (*pair_values.pair_pattern(attention.factors), attention.factors)
    values = Product(*place, attention.query_values, attention.key_values)
    if attention.query_magnitudes is None or attention.key_magnitudes is None:
        return _Products(values, None)
    return _Products(values, Product(*place, attention.query_magnitudes, attention.key_magnitudes))


def _over_pairs(attention: Attention, products: _Products) -> PairAttention:
    """Return the inputs of the same attention over the entries of the product."""
    pairs = make_pattern(products.values.row_ptr, products.values.columns, attention.factors.num_keys)
    magnitudes = None if products.magnitudes is None else pair_values.pair_values(products.magnitudes)
    q, k, v, is_key, softmax, normalize = attention[5:]
    values = pair_values.pair_values(products.values)
    return PairAttention(pairs, values, magnitudes, q, k, v, is_key, softmax, False, normalize)


def feature_attention(attention: Attention) -> tuple[Tensor, Tensor]:
    """Attention [G, R, D] and its denominator [G, R]."""
    return pair_attention.pair_attention(_over_pairs(attention, _products(attention)))


def feature_attention_backward(
    attention: Attention, outputs: tuple[Tensor, ...], grad: Tensor, wanted: Collection[str]
) -> dict[str, Tensor]:
    """Return the gradients of the values of features, and of q, k and v."""
    products = _products(attention)
    over_pairs = _over_pairs(attention, products)
    found = pair_attention.pair_attention_backward(over_pairs, outputs, grad, wanted)
    grads = {name: found[name] for name in ("q", "k", "v")} | pair_values.pair_values_backward(
        products.values, found["values"]
    )
    if products.magnitudes is not None:
        by_magnitude = pair_values.pair_values_backward(products.magnitudes, found["magnitudes"])
        grads["query_magnitudes"], grads["key_magnitudes"] = by_magnitude["query_values"], by_magnitude["key_values"]
    return grads
