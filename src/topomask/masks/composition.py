"""What masks that are made of masks ask of their parts, and how entries of several patterns become one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from topomask.masks.base import Entries, Mask, Normalizer
from topomask.masks.selected import SelectedMask
from topomask.ops import segments
from topomask.ops.sparse_product import Pattern, make_pattern

# Entries per head up to which a mask that is not sparse may be written out within a sparse one.
MAX_FULL_ENTRIES = 1 << 16


class Union(NamedTuple):
    """Where any of several patterns has entries."""

    pattern: Pattern
    places: list[Tensor]  # where the entries of every part stand
    heads: list[Tensor | None]  # the head of every entry of a part; None for a part of one head


def check_masks(masks: Sequence[Any], name: str) -> None:
    """A ValueError unless all are whole masks."""
    if not masks:
        raise ValueError(f"`{name}` is empty. Pass at least one mask.")
    for place, mask in enumerate(masks):
        if not isinstance(mask, Mask):
            raise ValueError(
                f"`{name}` must hold masks, but number {place} is a {type(mask).__name__}. Wrap a matrix in DenseMask."
            )
        if isinstance(mask, SelectedMask):
            raise ValueError(f"`{name}` holds a selection of nodes, number {place}. Join the whole masks, then select.")


def common_heads(masks: Sequence[Mask], name: str, at_least: int = 1) -> int:
    """The heads of all masks together: each has that many, or one that serves all."""
    counts = [mask.num_heads for mask in masks]
    heads = max([at_least, *counts])
    if any(count not in (1, heads) for count in counts):
        raise ValueError(f"`{name}` must have one head or {heads}, but have {counts}. Build them with as many heads.")
    return heads


def common_normalizer(masks: Sequence[Mask]) -> Normalizer:
    """The plain sum if any part asks for it: its magnitude says little of the part, so little of the whole."""
    return "signed" if any(mask.default_normalizer == "signed" for mask in masks) else "absolute"


def common_size(masks: Sequence[Mask], name: str) -> tuple[int, int, int]:
    """The queries, keys and graphs that all masks agree on."""
    sizes = [(mask.num_queries, mask.num_keys) for mask in masks]
    if len(set(sizes)) > 1:
        raise ValueError(f"`{name}` must have the same queries and keys, but have {sizes}.")
    counts = [mask.num_graphs for mask in masks]
    groups = [mask.key_groups for mask in masks]
    if len(set(counts)) > 1 or not all(_same(groups[0], other) for other in groups[1:]):
        raise ValueError(
            f"`{name}` must be on the same batch of graphs, so that no graph sees another, but are on {counts} graphs"
            f"{' of different sizes' if len(set(counts)) == 1 else ''}. Build them on the same Graph.batch."
        )
    return *sizes[0], counts[0]


def _same(first: Tensor | None, second: Tensor | None) -> bool:
    if first is None or second is None:
        return first is second
    return torch.equal(first.cpu(), second.cpu())


def unite(parts: Sequence[Mask], num_heads: int) -> Union:
    """The union of the patterns of masks of one size; those of one head are repeated for every head."""
    num_queries, num_keys = parts[0].num_queries, parts[0].num_keys
    if len(parts) == 1 and parts[0].num_heads == num_heads:
        pattern = parts[0].pattern()
        head = segments.index(pattern.row_ptr) // max(1, num_queries) if num_heads > 1 else None
        return Union(pattern, [torch.arange(len(pattern.columns), device=pattern.columns.device)], [head])
    keys: list[Tensor] = []
    heads: list[Tensor | None] = []
    for part in parts:
        pattern = part.pattern()
        row = segments.index(pattern.row_ptr)
        # A head sees its own columns alone, so row and column within the head name an entry.
        key = row * num_keys + pattern.columns % max(1, num_keys)
        heads.append(row // max(1, num_queries) if part.num_heads > 1 else None)
        if part.num_heads < num_heads:
            shifts = torch.arange(num_heads, device=key.device) * (num_queries * num_keys)
            key = (shifts[:, None] + key).flatten()
        keys.append(key)
    union, places = torch.cat(keys).unique(return_inverse=True)
    row = union // max(1, num_keys)
    column = union % max(1, num_keys) + row // max(1, num_queries) * num_keys
    counts = torch.bincount(row, minlength=num_heads * num_queries)
    pattern = make_pattern(segments.pointers(counts), column, num_heads * num_keys)
    places = places.to(segments.index_type(len(union)))
    return Union(pattern, list(places.split([len(key) for key in keys])), heads)


def full_pattern(mask: Mask, device: torch.device) -> Pattern:
    """A pattern with an entry everywhere within every head."""
    rows = mask.num_heads * mask.num_queries
    row_ptr = torch.arange(rows + 1, device=device) * mask.num_keys
    head = torch.arange(mask.num_heads, device=device)[:, None, None] * mask.num_keys
    columns = head + torch.arange(mask.num_keys, device=device).expand(mask.num_queries, -1)
    return make_pattern(row_ptr, columns.flatten(), mask.num_heads * mask.num_keys)


def full_entries(mask: Mask, pattern: Pattern) -> Entries:
    """All entries of a small mask, zeros too."""
    magnitude, values = mask.magnitude(), mask.dense_weights().flatten()
    return Entries(pattern, values, values if magnitude is mask else magnitude.dense_weights().flatten())
