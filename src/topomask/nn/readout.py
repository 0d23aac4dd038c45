"""Readout: one vector per graph."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from topomask.attention.inputs import check_features, check_tokens
from topomask.graph import Graph
from topomask.support.checks import check_choice

Readout = Literal["node", "mean", "sum", "attention"]


class GraphReadout(nn.Module):
    r"""Pool the nodes of each graph in a batch to one vector, or return the nodes unchanged.

    ============= ==================================================================================
    ``node``      :math:`x_i`, one per node
    ``mean``      :math:`\frac{1}{n} \sum_i x_i`
    ``sum``       :math:`\sum_i x_i`
    ``attention`` :math:`\sum_i a_i x_i` with :math:`a = \mathrm{softmax}(w^\top x_i)` over a graph
    ============= ==================================================================================

    Args:
        kind: One of the names above.
        dim: Width of the tokens.

    Example:
        >>> import topomask as tm
        >>> graph = tm.Graph.batch([tm.path_graph(2), tm.path_graph(1)])
        >>> tm.nn.GraphReadout("mean", 1)(torch.tensor([[1.0], [3.0], [5.0]]), graph)
        tensor([[2.],
                [5.]])
    """

    def __init__(self, kind: Readout, dim: int) -> None:
        super().__init__()
        check_choice("readout", kind, get_args(Readout))
        self.kind: Readout = kind
        self.score = nn.Linear(dim, 1, bias=False) if kind == "attention" else None

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        """Map tokens [N, C] to graphs [G, C], or return them unchanged."""
        if self.kind == "node":
            return x
        check_features(x, graph, x.shape[-1])
        groups = graph.groups_on(x.device)
        if groups is None:
            groups = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        # Sums over thousands of nodes need more digits and a larger range than half precision has.
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        if self.score is not None:
            check_tokens(x, self.score)
            wide = wide * _softmax(self.score(x).to(wide.dtype), groups, graph.num_graphs)
        sums = wide.new_zeros(graph.num_graphs, x.shape[-1]).index_add(0, groups, wide)
        if self.kind == "mean":
            sums = sums / torch.bincount(groups, minlength=graph.num_graphs).clamp(min=1)[:, None]
        return sums.to(x.dtype)

    def extra_repr(self) -> str:
        """Shown when the module is printed."""
        return repr(self.kind)


def _softmax(scores: Tensor, groups: Tensor, num_graphs: int) -> Tensor:
    """Softmax of [N, 1] over the nodes of each graph."""
    floor = scores.new_full((num_graphs, 1), -torch.inf)
    largest = floor.scatter_reduce(0, groups[:, None], scores.detach(), "amax")
    powers = (scores - largest[groups]).exp()
    totals = powers.new_zeros(num_graphs, 1).index_add(0, groups, powers)
    return powers / totals[groups]
