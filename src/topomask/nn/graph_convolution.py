"""Graph convolution: sums over neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from topomask.attention.inputs import check_features, check_tokens
from topomask.graph import Graph
from topomask.graph.records import Recipe, SparseMatrix, find_record, pattern_of, with_self_loops
from topomask.support.checks import check_choice

Aggregation = Literal["gcn", "sum"]


class GraphConvolution(nn.Module):
    r"""A linear layer, then a sum over neighbours: the local branch of a graph transformer.

    ======== ============================================================================================
    ``gcn``  :math:`y = \tilde D^{-1/2} \tilde A \tilde D^{-1/2} x W^\top + b`, :math:`\tilde A = A + I`
    ``sum``  :math:`y = A x W^\top + x U^\top + b`, which can count neighbours
    ======== ============================================================================================

    Existing self-loops keep their weight. On a directed graph, a node sums over the nodes that its edges point to.

    Args:
        in_dim: Width of the input.
        out_dim: Width of the output.
        aggregation: ``"gcn"`` or ``"sum"``.

    Example:
        >>> import topomask as tm
        >>> tm.nn.GraphConvolution(8, 4)(torch.randn(5, 8), tm.cycle_graph(5)).shape
        torch.Size([5, 4])

    References:
        Kipf and Welling (2017); Morris et al. (2019).
    """

    def __init__(self, in_dim: int, out_dim: int, aggregation: Aggregation = "gcn") -> None:
        super().__init__()
        check_choice("aggregation", aggregation, get_args(Aggregation))
        self.aggregation: Aggregation = aggregation
        self.linear = nn.Linear(in_dim, out_dim, bias=False)
        self.root = nn.Linear(in_dim, out_dim, bias=False) if aggregation == "sum" else None
        self.bias = nn.Parameter(torch.zeros(out_dim))

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        """Convolve tokens [N, C] on a graph, or on a batch of graphs."""
        check_features(x, graph, self.linear.in_features)
        check_tokens(x, self.linear)
        matrix = find_record(graph, NEIGHBOR_SUMS[self.aggregation], x.device, torch.float32)
        out = matrix.multiply(self.linear(x))
        return out + self.bias if self.root is None else out + self.root(x) + self.bias

    def extra_repr(self) -> str:
        """Shown when the module is printed."""
        return f"aggregation={self.aggregation!r}"


@dataclass(frozen=True)
class _NeighborSums(Recipe):
    aggregation: Aggregation

    def make(self, graph: Graph, device: torch.device, dtype: torch.dtype) -> SparseMatrix:  # noqa: ARG002
        matrix = graph.to_scipy()
        if self.aggregation == "gcn":
            matrix = with_self_loops(matrix)
            # Without absolute values, degrees of a signed graph may be 0.
            degrees = np.abs(matrix).sum(axis=1)
            scales = 1.0 / np.sqrt(degrees)
            rows = np.repeat(np.arange(len(degrees)), np.diff(matrix.indptr))
            matrix.data = matrix.data * scales[rows] * scales[matrix.indices]
        # In double precision: a product converts it to its own.
        return SparseMatrix(pattern_of(matrix).to(device), torch.from_numpy(matrix.data).to(device))


NEIGHBOR_SUMS = {name: _NeighborSums(name).shared() for name in get_args(Aggregation)}
