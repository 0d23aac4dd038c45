"""Masks made of masks: checks of their parts, and entries joined on one pattern."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from topomask.graph import Graph
from topomask.masks.entries import Entries, Shape, pattern_shapes
from topomask.masks.kept import keep
from topomask.masks.mask import Mask
from topomask.masks.operator import Normalizer, Operator
from topomask.ops import segments
from topomask.ops.derived import derivation
from topomask.ops.registration import has_values
from topomask.ops.sparse_product import Pattern, make_pattern

# An operator that is not sparse may be part of a sparse one if it has at most this many entries per head.
MAX_FULL_ENTRIES = 1 << 16

Weight = float | Tensor


def check_masks(masks: dict[str, Any]) -> None:
    """Raise unless all are masks."""
    for name, mask in masks.items():
        if isinstance(mask, Operator):
            raise ValueError(
                f"`{name}` must be a mask, but is an operator, a mask on one graph. Combine the masks, then call "
                "on(graph). To select rows and columns, use query_nodes and key_nodes of masked_attention."
            )
        if not isinstance(mask, Mask):
            raise ValueError(f"`{name}` must be a mask, but is a {type(mask).__name__}. Wrap a matrix in DenseMask.")


def common_heads(masks: Sequence[Mask], name: str, at_least: int = 1) -> int:
    """Return the number of heads H that masks have in common: each has H heads, or one for all."""
    counts = [mask.num_heads for mask in masks]
    heads = max([at_least, *counts])
    if any(count not in (1, heads) for count in counts):
        raise ValueError(f"`{name}` must have 1 or {heads} heads, but have {counts}. Build them with equal num_heads.")
    return heads


def common_normalizer(masks: Sequence[Mask]) -> Normalizer:
    """Return "signed" if any part uses it: its magnitude is mostly noise, and so is that of the whole."""
    return "signed" if any(mask.default_normalizer == "signed" for mask in masks) else "absolute"


def sample_walks(mask: Mask, graph: Graph) -> Any:
    """Return the walks of a mask on a graph, or None if it does not use walks."""
    sample: Any = getattr(mask, "sample", None)
    return None if sample is None else sample(graph)


def check_same_tokens(parts: Sequence[Operator], name: str) -> None:
    """Raise unless operators have the same queries, keys and graphs."""
    sizes = [(part.num_queries, part.num_keys) for part in parts]
    # One by one: a set would make the compiler treat sizes as constants.
    if any(size != sizes[0] for size in sizes):
        raise ValueError(f"`{name}` must have the same numbers of queries and keys, but have {sizes}.")
    if torch.compiler.is_compiling():
        return
    counts = [part.num_graphs for part in parts]
    groups = [part.key_groups for part in parts]
    if len(set(counts)) > 1 or not all(_same(groups[0], other) for other in groups[1:]):
        raise ValueError(
            f"`{name}` must be on the same batch of graphs, so that no graph attends to another, but are on {counts} "
            f"graphs{' of different sizes' if len(set(counts)) == 1 else ''}. Build them on the same Graph.batch."
        )


def _same(first: Tensor | None, second: Tensor | None) -> bool:
    if first is None or second is None or first is second:
        return first is second
    if not (has_values(first) and has_values(second)):
        return first.shape == second.shape
    return torch.equal(first.cpu(), second.cpu())


def keep_joined(
    mask: Mask, parts: Sequence[Operator], make: Callable[[], Operator], state: Sequence[Tensor] = ()
) -> Operator:
    """Return the operator of a mask made of masks, cached with the first of its ``parts``.

    ``state`` lists the mask's own tensors. If they or a part have changed, the operator is ``make()``.
    """
    return keep(lambda: parts[0]._once("joined", WeakKeyDictionary), mask, state, parts, make)


def full_entries(operator: Operator) -> Entries:
    """Return all entries of a small operator, including zeros, on one pattern."""
    pattern = Pattern(
        *_full_pattern([torch.empty(0, device=operator.device)], [operator.num_queries, operator.num_keys])
    )
    values, magnitude = operator._dense_weights().flatten(1), operator.magnitude()
    return Entries(pattern, values, values if magnitude is operator else magnitude._dense_weights().flatten(1))


def _full_shapes(_: list[Tensor], numbers: list[int]) -> list[Shape]:
    count = numbers[0] * numbers[1]
    return pattern_shapes(numbers[0], numbers[1], count, segments.index_type(count))


@derivation(_full_shapes)
def _full_pattern(tensors: list[Tensor], numbers: list[int]) -> Pattern:
    """Return a pattern with an entry everywhere."""
    rows, columns = numbers
    device = tensors[0].device
    row_ptr = torch.arange(rows + 1, device=device) * columns
    return make_pattern(row_ptr, torch.arange(columns, device=device).repeat(rows), columns)


class Union(NamedTuple):
    """The union of several patterns.

    If every part shares its pattern among its heads, so does the union. Otherwise the union is block-diagonal over
    heads, and a shared part appears once per head.
    """

    pattern: Pattern
    places: list[Tensor]  # the indices in the union of the entries of every part
    heads: list[Tensor | None]  # the head of every entry of a part; None for a shared part
    is_shared: bool


def unite(
    patterns: Sequence[Pattern], part_heads: Sequence[int], num_heads: int, num_queries: int, num_keys: int
) -> Union:
    """Unite the patterns of parts, each shared by the heads of its part or block-diagonal over them."""
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
    """Add up the weighted entries [V, P] of all parts on the pattern of the union."""
    tensors = *parts, *(weight for weight in weights if isinstance(weight, Tensor))
    dtype = reduce(torch.promote_types, [tensor.dtype for tensor in tensors])
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
            # Every head has the entries of a shared part.
            values = values if union.is_shared else values.reshape(1, -1)
        total = total.index_add(1, places, values)
    return total


def _union_shapes(tensors: list[Tensor], numbers: list[int]) -> list[Shape]:
    num_heads, num_queries, num_keys, *own = numbers
    copies = num_heads if any(own) else 1
    sizes = [tensors[5 * k + 1].shape[0] * (1 if is_own else copies) for k, is_own in enumerate(own)]
    return pattern_shapes(copies * num_queries, copies * num_keys) + [(size, torch.int64) for size in sizes]


@derivation(_union_shapes)
def _unite(tensors: list[Tensor], numbers: list[int]) -> list[Tensor]:
    """Return the pattern of the union, and the indices of the entries of every part in it."""
    num_heads, num_queries, num_keys, *own = numbers
    copies = num_heads if any(own) else 1
    keys: list[Tensor] = []
    for place, is_own in enumerate(own):
        pattern = Pattern(*tensors[5 * place : 5 * place + 5])
        row = segments.index(pattern.row_ptr)
        # A row belongs to one head, so the row and the column within the head identify an entry.
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
    # Copies: results of an op must not share memory.
    return [*pattern, *(part.clone() for part in places.split([len(key) for key in keys]))]
