"""Masks of low rank."""

from __future__ import annotations

import torch
from torch import Tensor

from topomask.graph import Graph
from topomask.masks.graph_blocks import find_tiles, multiply_per_graph
from topomask.masks.mask import FixedMask, Mask, register
from topomask.masks.operator import ELEMENTS_PER_CHUNK, Cost, Operator, sum_of_chunks
from topomask.masks.selected import gather


class LowRankMask(FixedMask):
    r"""A mask of low rank, :math:`M = U V^\top`: O(N r).

    Args:
        u: [N_q, r] or [H, N_q, r]. An ``nn.Parameter`` is learnt, any other tensor becomes a buffer.
        v: [N_k, r] or [H, N_k, r]. Default: ``u``.

    Example:
        >>> import torch, topomask as tm
        >>> (tm.LowRankMask(torch.ones(5, 2)) @ torch.ones(1, 5, 3)).shape
        torch.Size([1, 5, 3])
    """

    u: Tensor
    v: Tensor | None

    def __init__(self, u: Tensor, v: Tensor | None = None) -> None:
        tied, v = v is None, u if v is None else v
        if u.ndim not in (2, 3) or u.ndim != v.ndim or u.shape[-1] != v.shape[-1] or u.shape[:-2] != v.shape[:-2]:
            raise ValueError(
                f"`u` and `v` must have shapes [N_q, r] and [N_k, r], or [H, N_q, r] and [H, N_k, r], "
                f"but have shapes {tuple(u.shape)} and {tuple(v.shape)}. Pass factors of equal rank and heads."
            )
        super().__init__(num_heads=1 if u.ndim == 2 else len(u))
        register(self, "u", u)
        register(self, "v", None if tied else v)

    def _operator(self) -> Operator:
        return LowRankOperator(self, self.u, self.v)


class LowRankOperator(Operator):
    r"""The product of two thin matrices per head, :math:`M = U V^\top`; on a batch of graphs, within every graph.

    U is [N_q, r] or [H, N_q, r], and V, which defaults to U, is [N_k, r] or [H, N_k, r]. If ``positive``, no entry is
    negative.
    """

    def __init__(
        self, mask: Mask, u: Tensor, v: Tensor | None = None, graph: Graph | None = None, positive: bool = False
    ) -> None:
        super().__init__(mask, graph, num_tokens=u.shape[-2])
        v = u if v is None else v
        self.num_keys = v.shape[-2]
        self.dtype = torch.promote_types(torch.promote_types(u.dtype, v.dtype), torch.float32)
        self.device = u.device
        self._widen(u, v)
        self._u, self._v, self._positive = u.to(self.dtype), v.to(self.dtype), positive
        self._tiles = find_tiles(graph, self.device)

    def matmul(self, x: Tensor) -> Tensor:
        """U (V^T x)."""
        return self._multiply(self._u, self._v, x)

    def rmatmul(self, x: Tensor) -> Tensor:
        """V (U^T x)."""
        return self._multiply(self._v, self._u, x)

    def _multiply(self, u: Tensor, v: Tensor, x: Tensor) -> Tensor:
        if self._tiles is not None:
            return multiply_per_graph(self._tiles, u, v, x)
        dtype = torch.promote_types(u.dtype, x.dtype)
        return (u.to(dtype) @ (v.to(dtype).mT @ x.to(dtype))).to(x.dtype)

    def attend(self, phi_q: Tensor, phi_k: Tensor, v: Tensor) -> Tensor:
        """Plain linear attention with r times the features: nothing of shape [N, M, D] is computed."""
        if self.key_groups is not None or self._u.shape[-1] > v.shape[-1]:
            return super().attend(phi_q, phi_k, v)
        return low_rank_attention(self._u, self._v, phi_q, phi_k, v)

    def submatrix(self, query_nodes: Tensor | None, key_nodes: Tensor | None) -> Tensor:
        """Rows of U times rows of V."""
        dense = gather(self._u, query_nodes) @ gather(self._v, key_nodes).mT
        dense = dense if dense.ndim == 3 else dense[None]
        if self.key_groups is None:
            return dense
        queries, keys = (gather(self.key_groups[:, None], nodes) for nodes in (query_nodes, key_nodes))
        return dense * (queries == keys.mT)

    def magnitude(self) -> LowRankOperator:
        r"""The product of the absolute factors, :math:`|U| |V|^\top`."""
        if self._positive:
            return self
        return self._once("magnitude", lambda: self._copy(_u=self._u.abs(), _v=self._v.abs(), _positive=True))

    def cost(self) -> Cost:
        """The entries of both factors; on a batch, every graph has its own factors."""
        rank = self._u.shape[-1]
        product = self.num_heads * (self.num_queries + self.num_keys) * rank
        dense = self.num_heads * self.num_queries * self.num_keys * rank
        return Cost(
            product,
            dense,
            refresh=0 if self._is_kept else product,
            rank=rank if self._tiles is None else None,
            # On a batch, every tile multiplies its keys with x.
            inner_rows=0 if self._tiles is None else len(self._tiles.group) * rank,
        )


def low_rank_attention(u: Tensor, v: Tensor, phi_q: Tensor, phi_k: Tensor, values: Tensor) -> Tensor:
    """Return unnormalised attention with the mask U V^T, a few columns of U and V at a time."""

    def part(u: Tensor, v: Tensor, phi_q: Tensor, phi_k: Tensor, values: Tensor) -> Tensor:
        queries = (u.unsqueeze(-1) * phi_q.unsqueeze(-2)).flatten(-2)  # [..., H, N_q, r M]
        keys = (v.unsqueeze(-1) * phi_k.unsqueeze(-2)).flatten(-2)
        return queries @ (keys.mT @ values)

    factors = u.to(values.dtype), v.to(values.dtype)
    columns = ELEMENTS_PER_CHUNK // max(phi_q.numel(), phi_k.numel(), 1)
    return sum_of_chunks(part, factors, (phi_q, phi_k, values), columns)
