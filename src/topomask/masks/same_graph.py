"""The mask that hides nothing but other graphs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from topomask.graph import Graph
from topomask.masks.base import ELEMENTS_PER_CHUNK, Entries
from topomask.masks.graph_mask import GraphMask
from topomask.ops.blocks import block_pattern
from topomask.ops.sparse_product import Pattern


class SameGraphMask(GraphMask):
    r"""Every node attends to every node of its own graph: plain attention on a batch of graphs, in O(N).

    .. math:: M_{ij} = 1 \text{ if } i \text{ and } j \text{ belong to the same graph of the batch, else } 0

    Edges do not count. This is what a mask is compared with to know what it adds. There is nothing to learn, so one
    head serves all. Softmax attention goes over the :math:`\sum_g n_g^2` pairs of a batch, and needs no padding; on one
    graph it is plain attention, in O(N) memory unless pairs are dropped.

    Args:
        graph: The graph, or a batch of graphs.

    Example:
        >>> import topomask as tm
        >>> tm.SameGraphMask(tm.Graph.batch([tm.path_graph(2), tm.path_graph(1)])).to_dense()
        tensor([[[1., 1., 0.],
                 [1., 1., 0.],
                 [0., 0., 1.]]])
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.num_heads = 1
        self._bind(graph)
        self._follow(torch.empty(0))

    def _bind(self, graph: Graph) -> None:
        super()._bind(graph)
        sizes = np.bincount(graph.graph_index, minlength=graph.num_graphs).astype(np.int64)
        self._num_pairs = int((sizes**2).sum())
        self._sizes = torch.from_numpy(sizes)
        self._tiles = None if self._groups is None else _Tiles.of(sizes)
        # Formed at first use: one large graph has too many.
        self._pairs: Pattern | None = None

    def product(self) -> Callable[[Tensor], Tensor]:
        """Multiplication by M, in at least float32."""
        return self.matmul

    def matmul(self, x: Tensor) -> Tensor:
        """Sums over the graph of every node."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        if self._groups is None:
            return wide.sum(dim=-2, keepdim=True).expand_as(x).to(x.dtype)
        zeros = wide.new_zeros(*x.shape[:-2], self.num_graphs, x.shape[-1])
        return zeros.index_add(-2, self._groups, wide).index_select(-2, self._groups).to(x.dtype)

    def rmatmul(self, x: Tensor) -> Tensor:
        """The same: M is symmetric."""
        return self.matmul(x)

    def attend(self, phi_q: Tensor, phi_k: Tensor, v: Tensor) -> Tensor:
        """Plain linear attention within every graph: the sums of a graph are those of its tiles."""
        tiles, batch = self._tiles, phi_q.shape[:-2]
        if tiles is None:
            return phi_q @ (phi_k.mT @ v)
        if batch.numel() * len(tiles.group) * phi_q.shape[-1] * v.shape[-1] > ELEMENTS_PER_CHUNK:
            return super().attend(phi_q, phi_k, v)
        dtype = torch.promote_types(v.dtype, torch.float32)
        queries, keys, values = (tiles.cut(x.to(dtype)) for x in (phi_q, phi_k, v))
        sums = keys.mT @ values  # [..., tiles, M, D]
        zeros = sums.new_zeros(*sums.shape[:-3], self.num_graphs, *sums.shape[-2:])
        of_graph = zeros.index_add(-3, tiles.group, sums).index_select(-3, tiles.group)
        return (queries @ of_graph).flatten(-3, -2).index_select(-2, tiles.place).to(v.dtype)

    @property
    def rank(self) -> int | None:
        """1: every graph is attended to without a mask."""
        return 1

    @property
    def hides_nothing(self) -> bool:
        """Where there is one graph."""
        return self._groups is None

    def to_dense(self) -> Tensor:
        """M, [1, N, N]."""
        groups = torch.zeros(self.num_keys, device=self._probe.device) if self._groups is None else self._groups
        return (groups[:, None] == groups).to(torch.promote_types(self._probe.dtype, torch.float32))[None]

    def magnitude(self) -> SameGraphMask:
        """The mask itself: nothing is negative."""
        return self

    def pattern(self) -> Pattern:
        """All pairs of nodes of the same graph, computed once."""
        return _constant_pattern(self)

    def _pattern(self) -> Pattern:
        if self._pairs is None:
            with torch.inference_mode(False):
                self._pairs = block_pattern(self._sizes)
        return self._pairs

    def entries(self) -> Entries:
        """Ones."""
        ones = torch.ones(
            self._num_pairs, dtype=torch.promote_types(self._probe.dtype, torch.float32), device=self._probe.device
        )
        return Entries(self.pattern(), ones, ones)

    @property
    def num_pairs_bound(self) -> int:
        """Pairs of nodes of the same graph."""
        return self._num_pairs

    @property
    def product_cost(self) -> int:
        """An addition per node."""
        return self.num_keys

    @property
    def dense_cost(self) -> int:
        """Nothing: entries are written to their places."""
        return 0

    def _move(self, device: torch.device, dtype: torch.dtype) -> None:
        super()._move(device, dtype)
        self._sizes = self._sizes.to(device)
        self._tiles = None if self._tiles is None else self._tiles.to(device)
        self._pairs = None if self._pairs is None else self._pairs.to(device)


class _Tiles(NamedTuple):
    """The nodes of every graph cut into tiles of one height, the last of which is filled up with nothing."""

    height: int
    place: Tensor  # where every node stands among the rows of all tiles, [N]
    group: Tensor  # the graph of every tile

    @classmethod
    def of(cls, sizes: np.ndarray) -> _Tiles:
        """Tiles about as high as graphs are large: few are cut, and little is filled up."""
        height = min(max(math.ceil(sizes.mean()), 4), 64)
        counts = -(-sizes // height)
        # What the tiles before a graph hold beyond the nodes before it.
        gaps = (np.cumsum(counts) - counts) * height - (np.cumsum(sizes) - sizes)
        place = np.arange(sizes.sum()) + np.repeat(gaps, sizes)
        return cls(height, torch.from_numpy(place), torch.from_numpy(np.repeat(np.arange(len(sizes)), counts)))

    def cut(self, x: Tensor) -> Tensor:
        """Rows of nodes [..., N, C] in tiles, [..., tiles, height, C]."""
        count = len(self.group)
        zeros = x.new_zeros(*x.shape[:-2], count * self.height, x.shape[-1])
        return zeros.index_copy(-2, self.place, x).unflatten(-2, (count, self.height))

    def to(self, device: torch.device) -> _Tiles:
        """The same on another device."""
        return _Tiles(self.height, self.place.to(device), self.group.to(device))


@torch.compiler.assume_constant_result
def _constant_pattern(mask: SameGraphMask) -> Pattern:
    """The graph is frozen, so the compiler need not look into how its pattern comes about."""
    return mask._pattern()
