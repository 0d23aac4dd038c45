"""A mask of the degrees of query and key."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from topomask.graph import Graph
from topomask.graph_input import Array, check_integer
from topomask.masks.graph_mask import GraphMask
from topomask.masks.graph_sums import spread_per_graph, sum_per_graph
from topomask.masks.low_rank import low_rank_attention, low_rank_product
from topomask.modulation import table_per_head


class DegreeMask(GraphMask):
    r"""A mask of the degrees of query and key, of rank 2: O(N).

    .. math:: M_{ij} = \sin\bigl(\tfrac{\pi}{4}(z(d_i) + z(d_j))\bigr)
        = \sin a_i \cos a_j + \cos a_i \sin a_j, \qquad a_i = \tfrac{\pi}{4} z(d_i)

    for i and j in the same graph of a batch, and 0 otherwise. Every head learns its own :math:`z` in (0, 1), one number
    per degree. Nothing is negative, so the mask is its own magnitude. Which nodes are close makes no difference: the
    components of one graph see each other.

    The degree :math:`d_i` is the number of edges that leave a node, whatever their weights, a self-loop counted once: z
    is a table, and weighted degrees would need a scale. (A part that :meth:`topomask.Graph.neighborhood` cuts out of an
    unweighted graph keeps the degrees of the whole; of a weighted one, only the edges of the part are known.)

    Args:
        graph: The graph.
        num_heads: Heads; each has its own z.
        max_degree: Nodes of this degree and of any larger one share one number.
        z: Initial values, in (0, 1), [max_degree + 1] or [H, max_degree + 1]. Default: 1/2, where M is constant, so
            that attention starts as if there were no mask.

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

    def __init__(self, graph: Graph, num_heads: int = 1, max_degree: int = 64, *, z: Tensor | None = None) -> None:
        super().__init__()
        check_integer("num_heads", num_heads, 1)
        check_integer("max_degree", max_degree, 0)
        z = torch.full((max_degree + 1,), 0.5) if z is None else z
        size = f"max_degree + 1={max_degree + 1}"
        start = table_per_head("z", z, num_heads, max_degree + 1, size, "degree from 0 on")
        if not start.is_meta and not bool(((start > 0) & (start < 1)).all()):
            raise ValueError(f"`z` must lie between 0 and 1, both excluded, but is {start.tolist()}.")
        self.logits = nn.Parameter(start.logit())
        self.num_heads, self.max_degree = num_heads, max_degree
        self._bind(graph)
        self._follow(self.logits)

    def _bind(self, graph: Graph) -> None:
        super()._bind(graph)
        self._buckets = torch.tensor(np.minimum(_degrees(graph), self.max_degree), device="cpu")  # [N]

    def z(self) -> Tensor:
        """The number of every head and degree, in at least float32, [H, max_degree + 1]."""
        return self.logits.to(torch.promote_types(self.logits.dtype, torch.float32)).sigmoid()

    def _factors(self) -> tuple[Tensor, Tensor]:
        """U = (sin a, cos a) and V = (cos a, sin a), [H, N, 2], with M = U V^T."""
        angles = math.pi / 4 * self.z()
        sin, cos = (wave.index_select(1, self._buckets) for wave in (angles.sin(), angles.cos()))
        return torch.stack([sin, cos], dim=-1), torch.stack([cos, sin], dim=-1)

    def product(self) -> Callable[[Tensor], Tensor]:
        """Multiplication by M with its factors computed once."""
        u, v = self._factors()
        if self._groups is None:
            return lambda x: low_rank_product(u, v, x)
        return lambda x: self._multiply_per_graph(u, v, x)

    def _multiply_per_graph(self, u: Tensor, v: Tensor, x: Tensor) -> Tensor:
        weighted = torch.cat([v[..., :1] * x, v[..., 1:] * x], dim=-1)
        totals = sum_per_graph(weighted, self._groups, self.num_graphs)
        first, second = spread_per_graph(totals, self._groups, self.num_queries).chunk(2, dim=-1)
        return (u[..., :1] * first + u[..., 1:] * second).to(x.dtype)

    def matmul(self, x: Tensor) -> Tensor:
        """U (V^T x), within every graph."""
        return self.product()(x)

    def rmatmul(self, x: Tensor) -> Tensor:
        """The same: M is symmetric."""
        return self.matmul(x)

    def attend(self, phi_q: Tensor, phi_k: Tensor, v: Tensor) -> Tensor:
        """Plain linear attention with twice the features: no numbers [N, M, D] are formed."""
        if self._groups is not None:
            return super().attend(phi_q, phi_k, v)
        return low_rank_attention(*self._factors(), phi_q, phi_k, v)

    @property
    def rank(self) -> int | None:
        """2, and unknown for a batch, where every graph has factors of its own."""
        return 2 if self._groups is None else None

    def to_dense(self) -> Tensor:
        """M, [H, N, N]."""
        u, v = self._factors()
        dense = u @ v.mT
        return dense if self._groups is None else dense * (self._groups[:, None] == self._groups)

    def magnitude(self) -> DegreeMask:
        """The mask itself: nothing is negative."""
        return self

    @property
    def product_cost(self) -> int:
        """Entries of both factors."""
        return 4 * self.num_heads * self.num_keys

    @property
    def dense_cost(self) -> int:
        """Two products for every entry."""
        return 2 * self.num_heads * self.num_queries * self.num_keys

    @property
    def refresh_cost(self) -> int:
        """Entries of both factors, unless the dense matrix is kept."""
        return 0 if self._is_frozen() else self.product_cost

    def _move(self, device: torch.device, dtype: torch.dtype) -> None:
        super()._move(device, dtype)
        self._buckets = self._buckets.to(device)

    def extra_repr(self) -> str:
        """Shown when the module is printed."""
        return f"{super().extra_repr()}, max_degree={self.max_degree}"


def _degrees(graph: Graph) -> Array:
    """Edges that leave every node, [N]."""
    if graph.tensors.unit_weights:
        # A part of a graph keeps the degrees of the whole.
        return graph.degrees.astype(np.int64)
    return np.diff(graph.indptr)
