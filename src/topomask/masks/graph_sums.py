"""Sums over the tokens of every graph of a batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from topomask.graph import Graph
from topomask.graph.records import Recipe, Record, find_record


def sum_per_graph(x: Tensor, groups: Tensor | None, num_graphs: int) -> Tensor:
    """Sums of x [..., N, C] over the tokens of every graph, [..., G, C], in at least float32.

    Args:
        x: Numbers per token.
        groups: Which graph every token belongs to, [N]; None when there is one graph.
        num_graphs: Graphs G.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if groups is None:
        return x.sum(dim=-2, keepdim=True)
    return x.new_zeros(*x.shape[:-2], num_graphs, x.shape[-1]).index_add(-2, groups, x)


def spread_per_graph(totals: Tensor, groups: Tensor | None, num_tokens: int) -> Tensor:
    """The sums [..., G, C] of every token's graph, [..., N, C]."""
    return totals.expand(*totals.shape[:-2], num_tokens, -1) if groups is None else totals[..., groups, :]


@dataclass(eq=False)
class GraphTiles(Record):
    """The nodes of every graph cut into tiles of one height, the last of which is filled up with nothing."""

    height: int
    place: Tensor  # where every node stands among the rows of all tiles, [N]
    group: Tensor  # the graph of every tile
    num_graphs: int


# Functions, since the compiler calls no methods of a record that it holds for a constant.
def multiply_per_graph(tiles: GraphTiles, queries: Tensor, keys: Tensor, x: Tensor) -> Tensor:
    """Within every graph, rows of queries [..., N, R] times (keys [..., N, R], transposed, times x [..., N, C])."""
    dtype = torch.promote_types(torch.promote_types(queries.dtype, x.dtype), torch.float32)
    left, right, fine = (_cut(tiles, part.to(dtype)) for part in (queries, keys, x))
    sums = right.mT @ fine  # [..., tiles, R, C]
    total = sums.new_zeros(*sums.shape[:-3], tiles.num_graphs, *sums.shape[-2:]).index_add(-3, tiles.group, sums)
    out = left @ total.index_select(-3, tiles.group)
    return out.flatten(-3, -2).index_select(-2, tiles.place).to(x.dtype)


def _cut(tiles: GraphTiles, x: Tensor) -> Tensor:
    """Rows of nodes [..., N, C] in tiles, [..., tiles, height, C]."""
    count = len(tiles.group)
    zeros = x.new_zeros(*x.shape[:-2], count * tiles.height, x.shape[-1])
    return zeros.index_copy(-2, tiles.place, x).unflatten(-2, (count, tiles.height))


@dataclass(frozen=True)
class _TilesRecipe(Recipe):
    def make(self, graph: Graph, device: torch.device, dtype: torch.dtype) -> GraphTiles:  # noqa: ARG002
        sizes = np.bincount(graph.graph_index, minlength=graph.num_graphs).astype(np.int64)
        # About as high as graphs are large: few are cut, and little is filled up.
        height = min(max(math.ceil(sizes.mean()), 4), 64)
        counts = -(-sizes // height)
        # What the tiles before a graph hold beyond the nodes before it.
        gaps = (np.cumsum(counts) - counts) * height - (np.cumsum(sizes) - sizes)
        place = np.arange(sizes.sum()) + np.repeat(gaps, sizes)
        group = np.repeat(np.arange(len(sizes)), counts)
        return GraphTiles(height, torch.from_numpy(place).to(device), torch.from_numpy(group).to(device), len(sizes))


_TILES = _TilesRecipe().shared()


def find_tiles(graph: Graph | None, device: torch.device) -> GraphTiles | None:
    """The tiles of a batch of graphs; None for one graph."""
    if graph is None or graph.num_graphs == 1:
        return None
    return find_record(graph, _TILES, device, torch.float32)
