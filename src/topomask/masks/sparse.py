"""Operators given by their entries."""

from __future__ import annotations

from torch import Tensor

from topomask.graph import Graph
from topomask.masks.entries import Entries
from topomask.masks.mask import Mask
from topomask.masks.operator import Cost, Operator
from topomask.ops.pair_attention import TileWork
from topomask.ops.sparse_heads import densify, multiply


class SparseOperator(Operator):
    """A sparse matrix per head.

    ``tiles`` is the work of attention in tiles over the pattern, counted once if heads share it, or None for row by
    row. ``refresh`` is the number of multiply-adds to compute the entries if they are not cached.
    """

    def __init__(
        self, mask: Mask, graph: Graph, entries: Entries, tiles: TileWork | None = None, refresh: int = 0
    ) -> None:
        super().__init__(mask, graph)
        self._entries, self._tiles, self._refresh = entries, tiles, refresh

    def matmul(self, x: Tensor) -> Tensor:
        """M x."""
        return multiply(self._entries.pattern, self._entries.values, x, self.num_heads)

    def rmatmul(self, x: Tensor) -> Tensor:
        """M^T x."""
        return multiply(self._entries.pattern, self._entries.values, x, self.num_heads, transpose=True)

    def to_dense(self) -> Tensor:
        """M, [H, N, N]."""
        pattern, values, _ = self._entries
        return densify(pattern, values, self.num_heads, self.num_queries, self.num_keys)

    def magnitude(self) -> SparseOperator:
        """The magnitudes of the entries."""
        pattern, values, magnitudes = self._entries
        if magnitudes is values:
            return self
        return self._once("magnitude", lambda: self._copy(_entries=Entries(pattern, magnitudes, magnitudes)))

    def entries(self) -> Entries:
        """The given entries."""
        return self._entries

    def cost(self) -> Cost:
        """The entries over all heads."""
        pattern, values, _ = self._entries
        count = pattern.columns.shape[0] * len(values)
        on_cpu = self.device.type == "cpu"
        tiles = None if self._tiles is None or not on_cpu else TileWork(*(x * len(values) for x in self._tiles))
        return Cost(
            product=count,
            dense=0,
            refresh=0 if self._is_kept else self._refresh,
            pairs=count,
            max_pairs=count,
            tiles=tiles,
        )
