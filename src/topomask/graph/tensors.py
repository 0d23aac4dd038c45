"""What masks take of a graph as tensors on a device: its matrix, and which graph of a batch a node belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from topomask.graph.records import Recipe, Record
from topomask.ops.locality import suggest_order
from topomask.ops.sparse_heads import multiply
from topomask.ops.sparse_product import Pattern, make_pattern

if TYPE_CHECKING:
    from topomask.graph.graph import Graph, Normalization


@dataclass(eq=False)
class SparseMatrix(Record):
    """A sparse matrix on the nodes of a graph.

    Attributes:
        pattern: Where it has entries, [N, N].
        values: Its entries, [P].
    """

    pattern: Pattern
    values: Tensor

    def multiply(self, x: Tensor, *, transpose: bool = False) -> Tensor:
        """The matrix, or its transpose, times x [..., N, C]; differentiable, summed in at least float32."""
        values = self.values.to(torch.promote_types(x.dtype, torch.float32))
        return multiply(self.pattern, values[None], x, 1, transpose)


@dataclass(frozen=True)
class MatrixRecipe(Recipe):
    """The weighted adjacency matrix W."""

    by_precision = True
    normalization: Normalization | None

    def make(self, graph: Graph, device: torch.device, dtype: torch.dtype) -> SparseMatrix:
        """W as torch has it."""
        tensors = graph.tensors
        pattern = make_pattern(tensors.row_ptr, tensors.columns, graph.num_nodes)
        suggest_order(pattern.columns, graph, lambda graph: graph.node_groups)
        values = torch.from_numpy(graph.adjacency(self.normalization).data).to(device, dtype)
        return SparseMatrix(pattern.to(device), values)


@dataclass(frozen=True)
class GroupsRecipe(Recipe):
    """Which graph of a batch every node belongs to, [N]."""

    def make(self, graph: Graph, device: torch.device, dtype: torch.dtype) -> Tensor:  # noqa: ARG002
        """The numbers of the graphs."""
        return torch.tensor(graph.graph_index).to(device)


GROUPS = GroupsRecipe().shared()
MATRICES = {name: MatrixRecipe(name).shared() for name in (None, "sym", "row", "none")}
