"""The blocks of a batch of graphs: where an operator has entries that is dense within every graph."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from topomask.graph import Graph
from topomask.graph.records import Recipe, Record, find_record
from topomask.masks.entries import Entries
from topomask.masks.mask import Mask
from topomask.masks.operator import Operator, once
from topomask.ops.blocks import find_block_pattern, find_block_places
from topomask.ops.pair_attention import MIN_ENTRIES_PER_ROW, TileWork
from topomask.ops.sparse_product import Pattern

# Numbers that are formed at a time to find the blocks of a batch of graphs: 256 MB.
_AT_ONCE = 1 << 25
# Entries of all blocks, beyond which an operator is taken for dense: with what says where they are, about 2 GB.
_MAX_ENTRIES = 1 << 26
# The lanes of a tile.
_TILE = 16


@dataclass(eq=False)
class GraphBlocks(Record):
    """All pairs of nodes of the same graph. Which these are is found at first use.

    Attributes:
        sizes: Nodes of every graph, [G].
        places: Place of every node in its graph, [N].
        largest: Nodes of the largest graph.
        num_pairs: Pairs of nodes of the same graph, P.
        width: Columns that are multiplied at a time to find entries.
        counts: Entries that are found each time.
        tiles: The work of attention in tiles, where there is any.
    """

    sizes: Tensor
    places: Tensor
    largest: int
    num_pairs: int
    width: int
    counts: tuple[int, ...]
    tiles: TileWork | None


# Functions rather than methods: the compiler knows no methods of a record that it takes for a constant.
def blocks_pattern(blocks: GraphBlocks) -> Pattern:
    """All pairs of nodes of the same graph, [N, N]."""
    return find_block_pattern(blocks.sizes, len(blocks.places), blocks.num_pairs)


def gather_blocks(blocks: GraphBlocks, multiply: Callable[[Tensor], Tensor]) -> Tensor:
    """The entries of all blocks, [V, P], of matrices [V, N, N] that are given by their product with columns.

    Graphs do not mix, so one column may ask each of them for one of its nodes: all blocks are found by as many columns
    as the largest graph has nodes, some at a time where these are many.

    Args:
        blocks: The blocks.
        multiply: From columns [N, C] to their products, [V, N, C].
    """
    largest, width = blocks.largest, blocks.width
    where, order = find_block_places(blocks.sizes, len(blocks.places), blocks.num_pairs, largest, width)
    found = []
    for part, places in enumerate(where.split(blocks.counts)):
        asked = torch.arange(part * width, min((part + 1) * width, largest), device=where.device)
        columns = (blocks.places.unsqueeze(1) == asked).double()
        found.append(multiply(columns).flatten(1).index_select(1, places))
    return found[0] if order is None else torch.cat(found, dim=1).index_select(1, order)


@dataclass(frozen=True)
class BlocksRecipe(Recipe):
    """The blocks of a graph.

    Attributes:
        num_layers: Matrices that a product with a column gives at most.
    """

    num_layers: int

    @classmethod
    def of(cls, num_heads: int) -> Self:
        """The recipe for an operator that has as many layers as there are heads, or powers of a matrix."""
        return cls(max(num_heads, 16)).shared()

    def find(self, graph: Graph, device: torch.device) -> GraphBlocks:
        """Those of a graph, whatever the precision."""
        return find_record(graph, self, device, torch.float32)

    def make(self, graph: Graph, device: torch.device, dtype: torch.dtype) -> GraphBlocks:  # noqa: ARG002
        """Count pairs."""
        sizes = np.bincount(graph.graph_index, minlength=graph.num_graphs).astype(np.int64)
        largest, num_pairs = int(sizes.max()), int((sizes**2).sum())
        width = max(1, min(largest, _AT_ONCE // (self.num_layers * max(1, graph.num_nodes))))
        firsts = range(0, largest, width)
        counts = tuple(int((sizes * (sizes - first).clip(0, width)).sum()) for first in firsts)
        places = np.arange(graph.num_nodes) - (np.cumsum(sizes) - sizes)[graph.graph_index]
        tiled = graph.num_graphs > 1 and num_pairs >= MIN_ENTRIES_PER_ROW * graph.num_nodes
        return GraphBlocks(
            torch.from_numpy(sizes).to(device),
            torch.from_numpy(places).to(device),
            largest,
            num_pairs,
            width,
            counts,
            # Nodes of a graph see the same keys, so tiles are full, but for those at the end of a graph.
            TileWork(int((sizes * -(-sizes // _TILE)).sum()), 0) if tiled else None,
        )


class BlockOperator(Operator):
    """An operator that is dense within every graph, with the entries of blocks where there are several graphs.

    Args:
        mask: The mask.
        graph: The graph.
        blocks: Its blocks.
    """

    def __init__(self, mask: Mask, graph: Graph, blocks: GraphBlocks) -> None:
        super().__init__(mask, graph)
        self._blocks = blocks
        # None where it is taken for dense: with very many entries, or if one graph has nearly all.
        count, nearly_all = self.num_heads * blocks.num_pairs, 4 * blocks.num_pairs > 3 * self.num_keys**2
        self._num_entries = None if count > _MAX_ENTRIES or nearly_all else count

    @once
    def entries(self) -> Entries:
        """The blocks of the graphs of a batch."""
        if self._num_entries is None:
            return super().entries()
        values, magnitude = self._block_values(), self.magnitude()
        if magnitude is self:
            return Entries(blocks_pattern(self._blocks), values, values)
        assert isinstance(magnitude, BlockOperator)
        return Entries(blocks_pattern(self._blocks), values, magnitude._block_values())

    @abstractmethod
    def _block_values(self) -> Tensor:
        """The entries of all blocks, [H, P]."""
