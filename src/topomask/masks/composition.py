"""What masks that are made of masks ask of their parts, and how entries of several patterns become one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from topomask.graph import Graph
from topomask.masks.entries import Entries
from topomask.masks.kept import keep
from topomask.masks.mask import Mask
from topomask.masks.operator import Normalizer, Operator
from topomask.ops import segments
from topomask.ops.derived import derivation
from topomask.ops.registration import has_values
from topomask.ops.sparse_product import Pattern, make_pattern

# Entries per head up to which an operator that is not sparse may be written out within a sparse one.
MAX_FULL_ENTRIES = 1 << 16


def check_masks(masks: Sequence[Any], name: str) -> None:
    """A ValueError unless all are masks."""
    if not masks:
        raise ValueError(f"`{name}` is empty. Pass at least one mask.")
    for place, mask in enumerate(masks):
        if isinstance(mask, Operator):
            raise ValueError(
                f"`{name}` must hold masks, but number {place} is an operator, a mask on one graph. Join the masks, "
                "then call on(graph); rows and columns are selected by query_nodes and key_nodes of attention."
            )
        if not isinstance(mask, Mask):
            raise ValueError(
                f"`{name}` must hold masks, but number {place} is a {type(mask).__name__}. Wrap a matrix in DenseMask."
            )


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


def sample_walks(mask: Mask, graph: Graph) -> Any:
    """Walks of a mask on a graph; None where it does not walk."""
    sample: Any = getattr(mask, "sample", None)
    return None if sample is None else sample(graph)


def check_same_tokens(parts: Sequence[Operator], name: str) -> None:
    """A ValueError unless operators have the same queries, keys and graphs."""
    sizes = [(part.num_queries, part.num_keys) for part in parts]
    # One by one: in a set, the compiler would take sizes for constants.
    if any(size != sizes[0] for size in sizes):
        raise ValueError(f"`{name}` must have the same queries and keys, but have {sizes}.")
    if torch.compiler.is_compiling():
        return
    counts = [part.num_graphs for part in parts]
    groups = [part.key_groups for part in parts]
    if len(set(counts)) > 1 or not all(_same(groups[0], other) for other in groups[1:]):
        raise ValueError(
            f"`{name}` must be on the same batch of graphs, so that no graph sees another, but are on {counts} graphs"
            f"{' of different sizes' if len(set(counts)) == 1 else ''}. Build them on the same Graph.batch."
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
    """The operator of a mask that is made of masks; the one of the last time where nothing has changed.

    Args:
        mask: The mask.
        parts: Operators of its parts; it is kept beside the first.
        make: Makes the operator.
        state: Tensors of its own that it depends on.
    """
    return keep(lambda: parts[0]._once("joined", WeakKeyDictionary), mask, state, parts, make)


def full_entries(operator: Operator) -> Entries:
    """All entries of a small operator, zeros too, on one pattern."""
    pattern = Pattern(
        *_full_pattern([torch.empty(0, device=operator.device)], [operator.num_queries, operator.num_keys])
    )
    values, magnitude = operator._dense_weights().flatten(1), operator.magnitude()
    return Entries(pattern, values, values if magnitude is operator else magnitude._dense_weights().flatten(1))


def _full_shapes(_: list[Tensor], numbers: list[int]) -> list[tuple[int | None, torch.dtype]]:
    rows, columns = numbers
    count = rows * columns
    kind = segments.index_type(max(rows, columns) + 1)
    pattern = [(rows + 1, torch.int64), (count, kind), (columns + 1, torch.int64), (count, kind)]
    return [*pattern, (count, segments.index_type(count))]


@derivation(_full_shapes)
def _full_pattern(tensors: list[Tensor], numbers: list[int]) -> Pattern:
    """A pattern with an entry everywhere."""
    rows, columns = numbers
    device = tensors[0].device
    row_ptr = torch.arange(rows + 1, device=device) * columns
    return make_pattern(row_ptr, torch.arange(columns, device=device).repeat(rows), columns)
