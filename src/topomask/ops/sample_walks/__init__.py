"""Sampling random walks, bare or as sparse loads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from topomask.ops.backend import compiled
from topomask.ops.sample_walks import reference
from topomask.ops.sample_walks.reference import GraphTensors, Loads, WalkSettings

__all__ = ["GraphTensors", "Loads", "WalkSettings", "random_walks", "sample_walks"]


def sample_walks(
    graph: GraphTensors, start_nodes: Tensor, settings: WalkSettings, heads: Sequence[int], dtype: torch.dtype
) -> Loads:
    """Sample walks from ``start_nodes`` [R] for some heads, loads in ``dtype``; the same bits by every backend."""
    if not compiled(start_nodes):
        return reference.sample_walks(graph, start_nodes, settings, heads, dtype)
    from topomask.ops.sample_walks import numba

    return numba.sample_walks(graph, start_nodes, settings, heads, dtype)


def random_walks(graph: GraphTensors, start_nodes: Tensor, settings: WalkSettings, head: int) -> Tensor:
    """The walks that :func:`sample_walks` follows: visited nodes [R, W, L + 1], -1 once a walker has ended."""
    if not compiled(start_nodes):
        return reference.random_walks(graph, start_nodes, settings, head)
    from topomask.ops.sample_walks import numba

    return numba.random_walks(graph, start_nodes, settings, head)
