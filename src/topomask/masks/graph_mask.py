"""What masks on the nodes of a graph have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from topomask.graph import Graph
from topomask.masks.base import Mask, next_structure


class GraphMask(Mask):
    """A mask on the nodes of a graph, which can be moved to another graph.

    A subclass computes what it needs of the graph in :meth:`_bind` and takes it to another device in :meth:`_move`.
    Such tensors are no buffers: they follow the graph, so they are neither saved nor broadcast between processes.
    """

    graph: Graph
    _groups: Tensor | None

    def _bind(self, graph: Graph) -> None:
        """Take a graph. What is computed of it stands on the CPU."""
        self.graph = graph
        self.num_queries = self.num_keys = graph.num_nodes
        self.num_graphs = graph.num_graphs
        self._groups = torch.tensor(graph.graph_index, device="cpu") if graph.num_graphs > 1 else None
        # Shows where the tensors of the graph are, and in which precision.
        self._probe = torch.empty(0, dtype=torch.float32, device="cpu")
        self._structure, self._kept = next_structure(), {}

    def _move(self, device: torch.device, dtype: torch.dtype) -> None:
        """Take what belongs to the graph to a device, and loads or weights to a precision."""
        self._groups = None if self._groups is None else self._groups.to(device)
        self._probe = torch.empty(0, dtype=dtype, device=device)
        self._structure, self._kept = next_structure(), {}

    def _follow(self, parameter: Tensor) -> None:
        """Move to where a parameter is, unless that is nowhere yet."""
        if not parameter.is_meta:
            self._move(parameter.device, parameter.dtype)

    def on(self, graph: Graph, features: Any = None) -> Self:
        """The same parameters on another graph."""
        if features is not None:
            raise ValueError(f"`features` are walks, but {type(self).__name__} takes none. Leave them out.")
        view = self._view()
        view._bind(graph)
        view._move(self._probe.device, self._probe.dtype)
        return view

    @property
    def key_groups(self) -> Tensor | None:
        """Which graph every key belongs to."""
        return self._groups

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        probe = fn(self._probe)
        if not probe.is_meta:
            self._move(probe.device, probe.dtype)
        return self

    def extra_repr(self) -> str:
        """Shown when the module is printed."""
        return f"{self.graph}, num_heads={self.num_heads}"
