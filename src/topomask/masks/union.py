"""Entries of several patterns added up on the union of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from topomask.masks.part_weights import Weight
from topomask.ops import segments
from topomask.ops.derived import derivation
from topomask.ops.sparse_product import Pattern, make_pattern


class Union(NamedTuple):
    """Where any of several patterns has entries.

    If all of them are shared by their heads, so is the union. Otherwise it is block-diagonal over heads, and a part
    that is shared stands there once per head.
    """

    pattern: Pattern
    places: list[Tensor]  # where the entries of every part stand
    heads: list[Tensor | None]  # the head of every entry of a part; None for a part that is shared
    is_shared: bool


def unite(
    patterns: Sequence[Pattern], part_heads: Sequence[int], num_heads: int, num_queries: int, num_keys: int
) -> Union:
    """The union of patterns.

    Args:
        patterns: Those of the parts, each shared by the heads of its part, or block-diagonal over them.
        part_heads: Heads of every part.
        num_heads: Heads of the union.
        num_queries: Queries of all parts.
        num_keys: Keys of all parts.
    """
    own = [
        int(len(pattern.row_ptr) - 1 != num_queries and heads > 1)
        for pattern, heads in zip(patterns, part_heads, strict=True)
    ]
    tensors = [tensor for pattern in patterns for tensor in pattern]
    (*found,) = _unite(tensors, [num_heads, num_queries, num_keys, *own])
    count = len(patterns)
    heads = [
        segments.index(pattern.row_ptr, pattern.columns.shape[0]) // max(1, num_queries) if is_own else None
        for pattern, is_own in zip(patterns, own, strict=True)
    ]
    return Union(Pattern(*found[:5]), found[5 : 5 + count], heads, not any(own))


def join(union: Union, num_heads: int, weights: list[Weight], parts: list[Tensor]) -> Tensor:
    """Weighted entries of all parts [V, P] added up where they meet, on the pattern of the union."""
    dtype = parts[0].dtype
    for tensor in (*parts, *(weight for weight in weights if isinstance(weight, Tensor))):
        dtype = torch.promote_types(dtype, tensor.dtype)
    rows = num_heads if union.is_shared else 1
    total = parts[0].new_zeros(rows, union.pattern.columns.shape[0], dtype=dtype)
    for weight, values, places, heads in zip(weights, parts, union.places, union.heads, strict=True):
        values = values.to(dtype)
        if isinstance(weight, Tensor):
            weight = weight.to(dtype).expand(num_heads)
            weight = weight[:, None] if heads is None else weight.index_select(0, heads)
        values = weight * values
        if heads is None:
            values = values.expand(num_heads, -1)
            # Entries of a part that is shared are those of every head.
            values = values if union.is_shared else values.reshape(1, -1)
        total = total.index_add(1, places, values)
    return total


def _shapes(tensors: list[Tensor], numbers: list[int]) -> list[tuple[int | None, torch.dtype]]:
    num_heads, num_queries, num_keys, *own = numbers
    copies = num_heads if any(own) else 1
    rows, columns = copies * num_queries, copies * num_keys
    kind = segments.index_type(max(rows, columns) + 1)
    pattern: list[tuple[int | None, torch.dtype]] = [(rows + 1, torch.int64), (None, kind), (columns + 1, torch.int64)]
    pattern += [(None, kind), (None, torch.int32)]
    sizes = [tensors[5 * k + 1].shape[0] * (1 if is_own else copies) for k, is_own in enumerate(own)]
    return pattern + [(size, torch.int64) for size in sizes]


@derivation(_shapes)
def _unite(tensors: list[Tensor], numbers: list[int]) -> list[Tensor]:
    """The pattern of the union, and where the entries of every part stand in it."""
    num_heads, num_queries, num_keys, *own = numbers
    copies = num_heads if any(own) else 1
    keys: list[Tensor] = []
    for place, is_own in enumerate(own):
        pattern = Pattern(*tensors[5 * place : 5 * place + 5])
        row = segments.index(pattern.row_ptr)
        # A head sees its own columns alone, so row and column within the head name an entry.
        key = row * num_keys + pattern.columns % max(1, num_keys)
        if not is_own and copies > 1:
            shifts = torch.arange(copies, device=key.device) * (num_queries * num_keys)
            key = (shifts[:, None] + key).flatten()
        keys.append(key)
    union, places = torch.cat(keys).unique(return_inverse=True)
    row = union // max(1, num_keys)
    column = union % max(1, num_keys) + row // max(1, num_queries) * num_keys * (copies > 1)
    counts = torch.bincount(row, minlength=copies * num_queries)
    pattern = make_pattern(segments.pointers(counts), column, copies * num_keys)
    # Copies: results of an op share no memory.
    return [*pattern, *(part.clone() for part in places.split([len(key) for key in keys]))]
