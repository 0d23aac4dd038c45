"""Sums over the tokens of every graph of a batch."""

from __future__ import annotations

import torch
from torch import Tensor


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
