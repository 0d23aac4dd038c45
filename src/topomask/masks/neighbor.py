"""Masks of edges."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from topomask.graph import Graph
from topomask.graph.records import Recipe, Record, pattern_of, with_self_loops
from topomask.masks.entries import Entries
from topomask.masks.mask import GraphMask
from topomask.masks.sparse import SparseOperator
from topomask.ops.pair_attention import MIN_ENTRIES_PER_ROW, TileWork, estimate_tiles
from topomask.ops.sparse_product import Pattern, suggest_order


class NeighborMask(GraphMask):
    r"""Every node attends to its neighbours and to itself: O(E).

    .. math:: M_{ij} = 1 \text{ if } i = j \text{ or there is an edge from } i \text{ to } j, \text{ else } 0

    With softmax attention this is a graph attention layer: that of PyG's ``TransformerConv``, on the support of its
    ``GATConv``. Nothing is learnt, so one head is used for all.

    Row i of the mask is row i of the adjacency matrix, as in all masks: on a directed graph, a node attends to the
    nodes that its edges point to. PyG sends messages along edges, so there a node attends to the nodes that its edges
    come from. For that, reverse the edges: ``Graph.from_edges(edge_index.flip(0), directed=True)``.

    Args:
        graph: The default graph.
        weighted: Use the weights of the graph as entries, and 1 for self-loops that it does not have.
        self_loops: Let all nodes attend to themselves. Otherwise only nodes with a self-loop do, and a node without
            edges attends to nothing, which gives 0.

    Example:
        >>> import topomask as tm
        >>> tm.NeighborMask(tm.path_graph(3)).to_dense()
        tensor([[[1., 1., 0.],
                 [1., 1., 1.],
                 [0., 1., 1.]]])

    References:
        Velickovic et al. (2018); Shi et al. (2021); Reid et al. (2025), App. B.6.
    """

    _recipe: _NeighborRecipe

    def __init__(self, graph: Graph | None = None, *, weighted: bool = False, self_loops: bool = True) -> None:
        super().__init__(graph)
        self._recipe = _NeighborRecipe(weighted, self_loops).shared()

    def _operator(self, graph: Graph, record: _Neighbors) -> SparseOperator:
        entries = Entries(record.pattern, record.values, record.magnitudes)
        return SparseOperator(self, graph, entries, record.tiles)

    def extra_repr(self) -> str:
        """Settings shown when the module is printed."""
        return f"{self.graph}, weighted={self._recipe.weighted}, self_loops={self._recipe.self_loops}"


@dataclass(eq=False)
class _Neighbors(Record):
    pattern: Pattern
    values: Tensor  # [1, P]
    magnitudes: Tensor
    tiles: TileWork | None


@dataclass(frozen=True)
class _NeighborRecipe(Recipe):
    by_precision = True
    weighted: bool
    self_loops: bool

    def make(self, graph: Graph, device: torch.device, dtype: torch.dtype) -> _Neighbors:
        matrix = with_self_loops(graph.to_scipy()) if self.self_loops else graph.to_scipy()
        pattern = pattern_of(matrix)
        values = torch.from_numpy(matrix.data) if self.weighted else torch.ones(matrix.nnz)
        values = values.to(device, dtype)[None]
        suggest_order(pattern.columns, graph, lambda graph: graph.node_groups)
        tiled = matrix.nnz >= MIN_ENTRIES_PER_ROW * graph.num_nodes
        return _Neighbors(
            pattern.to(device),
            values,
            values.abs() if self.weighted and graph.signed else values,
            estimate_tiles(pattern, None) if tiled else None,
        )
