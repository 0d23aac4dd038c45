"""Masks that are dense within every graph."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from topomask.graph import Graph
from topomask.masks.base import Entries
from topomask.masks.graph_blocks import GraphBlocks
from topomask.masks.graph_mask import GraphMask
from topomask.ops.sparse_product import Pattern


class BlockMask(GraphMask):
    """A mask on a graph whose entries are those of blocks, one per graph of a batch; subclasses find their values."""

    def _bind(self, graph: Graph) -> None:
        super()._bind(graph)
        self._blocks = GraphBlocks.of(graph, self.num_heads)

    def _move(self, device: torch.device, dtype: torch.dtype) -> None:
        super()._move(device, dtype)
        self._blocks = self._blocks.to(device)

    @property
    def num_pairs_bound(self) -> int | None:
        """Pairs of nodes of the same graph; None where M is taken for dense, see :class:`GraphBlocks`."""
        return self._blocks.num_entries

    def pattern(self) -> Pattern:
        """The blocks of the graphs of a batch, per head."""
        return super().pattern() if self.num_pairs_bound is None else self._blocks.pattern(self.structure)

    def entries(self) -> Entries:
        """The blocks of the graphs of a batch, found by as many columns as the largest graph has nodes."""
        return super().entries() if self.num_pairs_bound is None else self._keep("entries", self._entries)

    def _entries(self) -> Entries:
        values, magnitude = self._block_values(), self.magnitude()
        if magnitude is self:
            return Entries(self.pattern(), values, values)
        assert isinstance(magnitude, BlockMask)
        return Entries(self.pattern(), values, magnitude._block_values())

    @abstractmethod
    def _block_values(self) -> Tensor:
        """The entries of all blocks, [H * P]."""
