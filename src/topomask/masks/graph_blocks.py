"""Batches of graphs: sums over every graph, its block of entries, and operators that are dense within it."""

from __future__ import annotations

import math
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

# Numbers computed at a time to find the blocks of a batch of graphs: 256 MB.
_AT_ONCE = 1 << 25
# An operator with more entries in all blocks is treated as dense: with their indices, about 2 GB.
_MAX_ENTRIES = 1 << 26
# The lanes of a tile.
_TILE = 16


@dataclass(eq=False)
class GraphBlocks(Record):
    """All pairs of nodes of the same graph."""

    sizes: Tensor  # nodes of every graph, [G]
    places: Tensor  # index of every node in its graph, [N]
    largest: int  # nodes of the largest graph
    num_pairs: int  # pairs of nodes of the same graph, P
    width: int  # columns multiplied at a time to find entries
    counts: tuple[int, ...]  # entries found each time
    tiles: TileWork | None  # the work of attention in tiles; None for row by row


# Functions, not methods: the compiler calls no methods of a record that it treats as a constant.
def blocks_pattern(blocks: GraphBlocks) -> Pattern:
    """Return the pattern of all pairs of nodes of the same graph, [N, N]."""
    return find_block_pattern(blocks.sizes, len(blocks.places), blocks.num_pairs)


def gather_blocks(blocks: GraphBlocks, multiply: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the entries of all blocks, [V, P], of matrices given by their products, from [N, C] to [V, N, C].

    Graphs do not mix, so one column can hold a unit vector for each of them: as many columns as the largest graph has
    nodes give all blocks, a part of the columns at a time if there are many.
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
    """The blocks of a graph, for products that give at most ``num_layers`` matrices."""

    num_layers: int

    @classmethod
    def of(cls, num_heads: int) -> Self:
        """Return the recipe for one matrix per head, or per power of a matrix."""
        return cls(max(num_heads, 16)).shared()

    def find(self, graph: Graph, device: torch.device) -> GraphBlocks:
        """Return the blocks of a graph, which are the same in every precision."""
        return find_record(graph, self, device, torch.float32)

    def make(self, graph: Graph, device: torch.device, dtype: torch.dtype) -> GraphBlocks:  # noqa: ARG002
        """Count the pairs of a graph."""
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
            # Nodes of a graph see the same keys, so all tiles but the last of a graph are full.
            TileWork(int((sizes * -(-sizes // _TILE)).sum()), 0) if tiled else None,
        )


class BlockOperator(Operator):
    """An operator that is dense within every graph; on a batch, its entries are those of the blocks."""

    def __init__(self, mask: Mask, graph: Graph, blocks: GraphBlocks) -> None:
        super().__init__(mask, graph)
        self._blocks = blocks
        # None if it is treated as dense: with very many entries, or if one graph has nearly all of them.
        count, nearly_all = self.num_heads * blocks.num_pairs, 4 * blocks.num_pairs > 3 * self.num_keys**2
        self._num_entries = None if count > _MAX_ENTRIES or nearly_all else count

    @once
    def entries(self) -> Entries:
        """The entries of the blocks."""
        if self._num_entries is None:
            return super().entries()
        values, magnitude = self._block_values(), self.magnitude()
        assert isinstance(magnitude, BlockOperator)
        magnitudes = values if magnitude is self else magnitude._block_values()
        return Entries(blocks_pattern(self._blocks), values, magnitudes)

    @abstractmethod
    def _block_values(self) -> Tensor:
        """Return the entries of all blocks, [H, P]."""


def sum_per_graph(x: Tensor, groups: Tensor | None, num_graphs: int) -> Tensor:
    """Sum x [..., N, C] over the tokens of every graph, [..., G, C], in at least float32.

    ``groups`` [N] is the graph of every token, or None if there is one graph.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if groups is None:
        return x.sum(dim=-2, keepdim=True)
    return x.new_zeros(*x.shape[:-2], num_graphs, x.shape[-1]).index_add(-2, groups, x)


def spread_per_graph(totals: Tensor, groups: Tensor | None, num_tokens: int) -> Tensor:
    """Return the sums [..., G, C] of every token's graph, [..., N, C]."""
    return totals.expand(*totals.shape[:-2], num_tokens, -1) if groups is None else totals[..., groups, :]


@dataclass(eq=False)
class GraphTiles(Record):
    """The nodes of every graph, cut into tiles of equal height, the last of which is padded."""

    height: int
    place: Tensor  # the row of every node among those of all tiles, [N]
    group: Tensor  # the graph of every tile
    num_graphs: int


# Not a method: the compiler calls no methods of a record that it treats as a constant.
def multiply_per_graph(tiles: GraphTiles, queries: Tensor, keys: Tensor, x: Tensor) -> Tensor:
    """Return queries (keys^T x) within every graph, for queries and keys [..., N, R] and x [..., N, C]."""
    dtype = torch.promote_types(torch.promote_types(queries.dtype, x.dtype), torch.float32)

    def cut(rows: Tensor) -> Tensor:  # [..., N, C] to [..., tiles, height, C]
        zeros = rows.new_zeros(*rows.shape[:-2], len(tiles.group) * tiles.height, rows.shape[-1])
        return zeros.index_copy(-2, tiles.place, rows).unflatten(-2, (len(tiles.group), tiles.height))

    left, right, fine = (cut(part.to(dtype)) for part in (queries, keys, x))
    sums = right.mT @ fine  # [..., tiles, R, C]
    total = sums.new_zeros(*sums.shape[:-3], tiles.num_graphs, *sums.shape[-2:]).index_add(-3, tiles.group, sums)
    out = left @ total.index_select(-3, tiles.group)
    return out.flatten(-3, -2).index_select(-2, tiles.place).to(x.dtype)


@dataclass(frozen=True)
class _TilesRecipe(Recipe):
    def make(self, graph: Graph, device: torch.device, dtype: torch.dtype) -> GraphTiles:  # noqa: ARG002
        sizes = np.bincount(graph.graph_index, minlength=graph.num_graphs).astype(np.int64)
        # About as high as graphs are large: few graphs are cut, and padding is small.
        height = min(max(math.ceil(sizes.mean()), 4), 64)
        counts = -(-sizes // height)
        # Padding in the tiles before every graph.
        gaps = (np.cumsum(counts) - counts) * height - (np.cumsum(sizes) - sizes)
        place = np.arange(sizes.sum()) + np.repeat(gaps, sizes)
        group = np.repeat(np.arange(len(sizes)), counts)
        return GraphTiles(height, torch.from_numpy(place).to(device), torch.from_numpy(group).to(device), len(sizes))


_TILES = _TilesRecipe().shared()


def find_tiles(graph: Graph | None, device: torch.device) -> GraphTiles | None:
    """Return the tiles of a batch of graphs; None for one graph."""
    if graph is None or graph.num_graphs == 1:
        return None
    return find_record(graph, _TILES, device, torch.float32)
