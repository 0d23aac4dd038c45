"""Attention without a mask, within every graph."""

from __future__ import annotations

import torch
from torch import Tensor

from topomask.graph import Graph
from topomask.masks.entries import Entries
from topomask.masks.graph_blocks import (
    BlocksRecipe,
    GraphBlocks,
    blocks_pattern,
    find_tiles,
    multiply_per_graph,
    spread_per_graph,
    sum_per_graph,
)
from topomask.masks.mask import GraphMask, Mask
from topomask.masks.operator import ELEMENTS_PER_CHUNK, Cost, Operator
from topomask.masks.selected import gather


class AllPairsMask(GraphMask):
    r"""Every node attends to every node of its own graph: plain attention on a batch of graphs, in O(N).

    .. math:: M_{ij} = 1 \text{ if } i \text{ and } j \text{ belong to the same graph of the batch, else } 0

    Edges are ignored: this is the baseline that shows what another mask adds. Nothing is learnt, so one head is used
    for all. Softmax attention goes over the :math:`\sum_g n_g^2` pairs of a batch, without padding; on one graph it is
    plain attention, in O(N) memory unless dropout acts on pairs.

    Args:
        graph: The default graph, or a batch of graphs.

    Example:
        >>> import topomask as tm
        >>> tm.AllPairsMask(tm.Graph.batch([tm.path_graph(2), tm.path_graph(1)])).to_dense()
        tensor([[[1., 1., 0.],
                 [1., 1., 0.],
                 [0., 0., 1.]]])
    """

    def __init__(self, graph: Graph | None = None) -> None:
        super().__init__(graph)
        self._recipe = BlocksRecipe.of(1)

    def _operator(self, graph: Graph, record: GraphBlocks) -> AllPairsOperator:
        return AllPairsOperator(self, graph, record)


class AllPairsOperator(Operator):
    """Ones between all nodes of the same graph."""

    def __init__(self, mask: Mask, graph: Graph, record: GraphBlocks) -> None:
        super().__init__(mask, graph)
        self.is_all_ones = graph.num_graphs == 1
        self._record, self._tiles = record, find_tiles(graph, self.device)

    def matmul(self, x: Tensor) -> Tensor:
        """The sums over the graph of every node."""
        totals = sum_per_graph(x, self.key_groups, self.num_graphs)
        return spread_per_graph(totals, self.key_groups, self.num_queries).to(x.dtype)

    rmatmul = matmul  # M is symmetric

    def attend(self, phi_q: Tensor, phi_k: Tensor, v: Tensor) -> Tensor:
        """Plain linear attention within every graph, with sums over its tiles."""
        tiles, batch = self._tiles, phi_q.shape[:-2]
        if tiles is None:
            return phi_q @ (phi_k.mT @ v)
        if batch.numel() * len(tiles.group) * phi_q.shape[-1] * v.shape[-1] > ELEMENTS_PER_CHUNK:
            return super().attend(phi_q, phi_k, v)
        return multiply_per_graph(tiles, phi_q, phi_k, v)

    def submatrix(self, query_nodes: Tensor | None, key_nodes: Tensor | None) -> Tensor:
        """Ones between nodes of the same graph."""
        groups = self.key_groups
        if groups is None:
            groups = torch.zeros(self.num_keys, dtype=torch.int64, device=self.device)
        queries, keys = (gather(groups[:, None], nodes) for nodes in (query_nodes, key_nodes))
        return (queries == keys.mT).to(self.dtype)[None]

    def magnitude(self) -> AllPairsOperator:
        """The operator itself: nothing is negative."""
        return self

    def entries(self) -> Entries:
        """Ones between all nodes of the same graph."""
        ones = torch.ones(1, self._record.num_pairs, dtype=self.dtype, device=self.device)
        return Entries(blocks_pattern(self._record), ones, ones)

    def cost(self) -> Cost:
        """One addition per node; attention within a graph is unmasked."""
        pairs = self._record.num_pairs
        return Cost(product=self.num_keys, dense=0, pairs=pairs, max_pairs=pairs, rank=1)
