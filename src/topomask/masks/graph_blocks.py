"""The blocks of a batch of graphs: where a mask has entries that is dense within every graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from topomask.graph import Graph
from topomask.ops import segments
from topomask.ops.blocks import block_pattern
from topomask.ops.sparse_product import Pattern

# Numbers that are formed at a time to find the blocks of a batch of graphs: 256 MB.
_AT_ONCE = 1 << 25
# Entries of all blocks, beyond which a mask is taken for dense: with what says where they are, about 2 GB.
_MAX_ENTRIES = 1 << 26


class _Part(NamedTuple):
    first: int  # columns ask for these places
    last: int
    where: Tensor  # where entries of these columns are in [N, last - first], flat


class _Layout(NamedTuple):
    pattern: Pattern  # per head, [H * N, H * N]
    places: Tensor  # place of every node in its graph, [N]
    parts: list[_Part]
    order: Tensor | None  # of all entries, in those of the parts one after the other; None where there is one part


class GraphBlocks:
    """All pairs of nodes of the same graph, for masks whose entries are found by products.

    Graphs do not mix, so one column may ask each of them for one of its nodes: all blocks are found at once, by as many
    columns as the largest graph has nodes, some at a time where these are many. Indexed at first use.

    Args:
        sizes: Nodes of every graph.
        num_heads: Heads of the mask.
        device: Where products are taken.
    """

    def __init__(self, sizes: list[int], num_heads: int, device: torch.device) -> None:
        self.sizes, self.num_heads, self.device = sizes, num_heads, device
        self.largest = max(sizes)
        # Per head.
        self.num_pairs = sum(size**2 for size in sizes)
        self._kept: _Layout | None = None

    @classmethod
    def of(cls, graph: Graph, num_heads: int) -> GraphBlocks:
        """Those of a graph, on the CPU."""
        sizes = np.bincount(graph.graph_index, minlength=graph.num_graphs)
        return cls(sizes.tolist(), num_heads, torch.device("cpu"))

    @property
    def num_entries(self) -> int | None:
        """Entries of the mask; None where it is taken for dense: with very many, or if one graph has nearly all."""
        count = self.num_heads * self.num_pairs
        return None if count > _MAX_ENTRIES or 4 * self.num_pairs > 3 * sum(self.sizes) ** 2 else count

    def to(self, device: torch.device) -> GraphBlocks:
        """The same on another device."""
        return self if device == self.device else GraphBlocks(self.sizes, self.num_heads, device)

    def pattern(self, structure: str) -> Pattern:
        """The pattern of a mask of this structure, [H * N, H * N]."""
        return _constant_layout(self, structure).pattern

    def gather(self, multiply: Callable[[Tensor], Tensor], structure: str) -> Tensor:
        """The entries of all blocks, [H, P], of masks [H, N, N] that are given by their product with columns.

        Args:
            multiply: From columns [N, C] to their products, [H, N, C].
            structure: Name of the structure of the mask.
        """
        layout = _constant_layout(self, structure)
        found = []
        for first, last, where in layout.parts:
            asked = torch.arange(first, last, device=self.device)
            columns = (layout.places.unsqueeze(1) == asked).double()
            found.append(multiply(columns).flatten(1).index_select(1, where))
        return found[0] if layout.order is None else torch.cat(found, dim=1).index_select(1, layout.order)

    def _layout(self) -> _Layout:
        if self._kept is None:
            with torch.inference_mode(False):
                sizes = torch.tensor(self.sizes, device=self.device)
                places = segments.ranges(torch.zeros_like(sizes), sizes)
                parts, order = self._parts(sizes.repeat_interleave(sizes))
                self._kept = _Layout(block_pattern(sizes.repeat(self.num_heads)), places, parts, order)
        return self._kept

    def _parts(self, counts: Tensor) -> tuple[list[_Part], Tensor | None]:
        """Which entries are found by which columns, given the number of entries of every row, [N]."""
        # A product has as many layers as there are heads, or powers of a matrix.
        layers = max(self.num_heads, 16)
        width = min(self.largest, max(1, _AT_ONCE // (layers * len(counts))))
        rows, starts = torch.arange(len(counts), device=self.device), segments.pointers(counts)[:-1]
        parts, targets = [], []
        for first in range(0, self.largest, width):
            last = min(first + width, self.largest)
            own = (counts - first).clamp(0, last - first)
            where = segments.ranges(rows * (last - first), own)
            parts.append(_Part(first, last, where.to(segments.index_type(len(counts) * width))))
            if width < self.largest:
                targets.append(segments.ranges(starts + first, own))
        if not targets:
            return parts, None
        # Entries stand row by row, but are found part by part.
        order = torch.empty(self.num_pairs, dtype=segments.index_type(self.num_pairs), device=self.device)
        order[torch.cat(targets)] = torch.arange(self.num_pairs, dtype=order.dtype, device=self.device)
        return parts, order


@torch.compiler.assume_constant_result
def _constant_layout(blocks: GraphBlocks, structure: str) -> _Layout:  # noqa: ARG001
    """The compiler need not look into how the layout comes about, but for the name of the structure."""
    return blocks._layout()
