"""The blocks of a batch of graphs: where a mask has entries that is dense within every graph."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from topomask.graph import Graph
from topomask.ops import segments
from topomask.ops.blocks import block_pattern
from topomask.ops.sparse_product import Pattern

# Numbers that are formed at a time to find the blocks of a batch of graphs: 256 MB.
_MAX_BLOCK_ENTRIES = 1 << 25


class _Layout(NamedTuple):
    pattern: Pattern  # per head, [H * N, H * N]
    places: Tensor  # place of every node in its graph, [N]
    where: Tensor  # where the entries of one head are in [N, nodes of the largest graph], flat


class GraphBlocks:
    """All pairs of nodes of the same graph, for masks whose entries are found by products.

    Graphs do not mix, so one column may ask each of them for one of its nodes: all blocks are found at once, by as many
    columns as the largest graph has nodes. Indexed at first use.

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
        """Entries of the mask, where there are many small graphs; None where it is taken for dense."""
        if len(self.sizes) == 1 or self.num_heads * sum(self.sizes) * self.largest > _MAX_BLOCK_ENTRIES:
            return None
        return self.num_heads * self.num_pairs

    def to(self, device: torch.device) -> GraphBlocks:
        """The same on another device."""
        return self if device == self.device else GraphBlocks(self.sizes, self.num_heads, device)

    def pattern(self, structure: str) -> Pattern:
        """The pattern of a mask of this structure, [H * N, H * N]."""
        return _constant_layout(self, structure).pattern

    def columns(self, structure: str) -> Tensor:
        """What to multiply by, [N, largest]."""
        return F.one_hot(_constant_layout(self, structure).places, self.largest).double()

    def read(self, found: Tensor, structure: str) -> Tensor:
        """The entries of all blocks [H * P], given the product with :meth:`columns`, [H, N, largest]."""
        return found.flatten(1).index_select(1, _constant_layout(self, structure).where).flatten()

    def _layout(self) -> _Layout:
        if self._kept is None:
            with torch.inference_mode(False):
                sizes = torch.tensor(self.sizes, device=self.device)
                places = segments.ranges(torch.zeros_like(sizes), sizes)
                starts = torch.arange(len(places), device=self.device) * self.largest
                where = segments.ranges(starts, sizes.repeat_interleave(sizes))
                self._kept = _Layout(block_pattern(sizes.repeat(self.num_heads)), places, where)
        return self._kept


@torch.compiler.assume_constant_result
def _constant_layout(blocks: GraphBlocks, structure: str) -> _Layout:  # noqa: ARG001
    """The compiler need not look into how the layout comes about, but for the name of the structure."""
    return blocks._layout()
