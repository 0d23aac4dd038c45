"""Sampling random walks into sparse loads."""

from __future__ import annotations

from torch import Tensor

from topomask.ops.backend import compiled
from topomask.ops.sample_walks import reference
from topomask.ops.sample_walks.reference import GraphTensors, Loads, WalkSettings

__all__ = ["GraphTensors", "Loads", "WalkSettings", "sample_walks"]


def sample_walks(graph: GraphTensors, start_nodes: Tensor, settings: WalkSettings, head: int) -> Loads:
    """Sample walks from ``start_nodes`` [R] for one head; the same bits by every backend."""
    if not compiled(start_nodes):
        return reference.sample_walks(graph, start_nodes, settings, head)
    from topomask.ops.sample_walks import numba

    return numba.sample_walks(graph, start_nodes, settings, head)
