"""Masks of node degrees."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from topomask.graph import Graph
from topomask.graph.input import check_integer
from topomask.graph.records import Recipe, TensorRecord
from topomask.masks.low_rank import LowRankOperator
from topomask.masks.mask import GraphMask
from topomask.ops.registration import has_values
from topomask.walks.modulation import table_per_head


class DegreeMask(GraphMask):
    r"""A function of the degrees of query and key, of rank 2: O(N).

    .. math:: M_{ij} = \sin\bigl(\tfrac{\pi}{4}(z(d_i) + z(d_j))\bigr)
        = \sin a_i \cos a_j + \cos a_i \sin a_j, \qquad a_i = \tfrac{\pi}{4} z(d_i)

    for i and j in the same graph of a batch, and 0 otherwise. Every head learns its own :math:`z` in (0, 1), one number
    per degree. No entry is negative. Distances are ignored: components of a graph attend to each other. The degree
    :math:`d_i` is the number of edges that leave a node, whatever their weights, with a self-loop counted once.

    Args:
        graph: The default graph.
        num_heads: Heads; each has its own z.
        max_degree: Nodes of this degree or a larger one share one number.
        z: Initial values in (0, 1), [max_degree + 1] or [H, max_degree + 1]. Default: 1/2, as without a mask.

    Example:
        >>> import torch, topomask as tm
        >>> mask = tm.DegreeMask(tm.path_graph(3), max_degree=2, z=torch.tensor([0.5, 1 / 3, 2 / 3]))
        >>> mask.to_dense()
        tensor([[[0.5000, 0.7071, 0.5000],
                 [0.7071, 0.8660, 0.7071],
                 [0.5000, 0.7071, 0.5000]]], grad_fn=<...>)

    References:
        Chen et al. (2024); Reid et al. (2025), App. B.5.
    """

    def __init__(
        self, graph: Graph | None = None, *, num_heads: int = 1, max_degree: int = 64, z: Tensor | None = None
    ) -> None:
        check_integer("num_heads", num_heads, 1)
        check_integer("max_degree", max_degree, 0)
        super().__init__(graph, num_heads)
        z = torch.full((max_degree + 1,), 0.5) if z is None else z
        start = table_per_head("z", z, num_heads, max_degree + 1, f"max_degree + 1={max_degree + 1}", "degree from 0")
        if has_values(start) and not bool(((start > 0) & (start < 1)).all()):
            raise ValueError(f"`z` must lie strictly between 0 and 1, but is {start.tolist()}.")
        self.logits, self.max_degree = nn.Parameter(start.logit()), max_degree
        self._recipe = _Degrees(max_degree).shared()

    def z(self) -> Tensor:
        """Return z of every head and degree, [H, max_degree + 1], in at least float32."""
        return self.logits.to(torch.promote_types(self.logits.dtype, torch.float32)).sigmoid()

    def _operator(self, graph: Graph, record: TensorRecord) -> LowRankOperator:
        angles = math.pi / 4 * self.z()
        sin, cos = (wave.index_select(1, record.tensor) for wave in (angles.sin(), angles.cos()))
        u = torch.stack([sin, cos], dim=-1)  # [H, N, 2]
        return LowRankOperator(self, u, u.flip(-1), graph, positive=True)


@dataclass(frozen=True)
class _Degrees(Recipe):
    max_degree: int

    def make(self, graph: Graph, device: torch.device, dtype: torch.dtype) -> TensorRecord:  # noqa: ARG002
        # A part of a graph keeps the degrees of the whole graph.
        degrees = graph.degrees.astype(np.int64) if graph._tensors.unit_weights else np.diff(graph.indptr)
        return TensorRecord(torch.tensor(np.minimum(degrees, self.max_degree)).to(device))
