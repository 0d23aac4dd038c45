"""Inputs of operators, and the ways to attend with them, for laws."""

import torch

import topomask as tm


def columns(operator: tm.Operator, *, batch: int = 2, width: int = 3, queries: bool = False) -> torch.Tensor:
    """Non-contiguous input of the right shape."""
    size = operator.num_queries if queries else operator.num_keys
    return torch.randn(batch, size, width, operator.num_heads, dtype=torch.float64).permute(0, 3, 1, 2)


def tokens(operator: tm.Operator, *, heads: int | None = None, width: int = 4) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values."""
    heads = operator.num_heads if heads is None else heads
    q = torch.randn(2, heads, operator.num_queries, width, dtype=torch.float64)
    k = torch.randn(2, heads, operator.num_keys, width, dtype=torch.float64)
    v = torch.randn(2, heads, operator.num_keys, 5, dtype=torch.float64)
    return q, k, v


def strategies(operator: tm.Operator, kernel: str = "linear") -> list[str]:
    names = ["dense"] + ["product"] * (kernel == "linear")
    return names + ["pairs"] * (operator.cost().pairs is not None)
