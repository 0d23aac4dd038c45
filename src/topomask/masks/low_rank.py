"""A mask given by two thin matrices."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from topomask.masks.base import ELEMENTS_PER_CHUNK, Mask


class LowRankMask(Mask):
    r"""A mask of low rank, :math:`M = U V^\top`: O(N r).

    Args:
        u: [N_q, r] or [H, N_q, r]. An ``nn.Parameter`` is learnt, any other tensor is a buffer.
        v: [N_k, r] or [H, N_k, r]. Default: ``u``.

    Example:
        >>> import torch, topomask as tm
        >>> (tm.LowRankMask(torch.ones(5, 2)) @ torch.ones(1, 5, 3)).shape
        torch.Size([1, 5, 3])
    """

    u: Tensor
    v: Tensor | None

    def __init__(self, u: Tensor, v: Tensor | None = None) -> None:
        super().__init__()
        tied, v = v is None, u if v is None else v
        if u.ndim not in (2, 3) or u.ndim != v.ndim or u.shape[-1] != v.shape[-1] or u.shape[:-2] != v.shape[:-2]:
            raise ValueError(
                f"`u` and `v` must have shapes [N_q, r] and [N_k, r], or [H, N_q, r] and [H, N_k, r], "
                f"but have shapes {tuple(u.shape)} and {tuple(v.shape)}."
            )
        for name, factor in (("u", u), ("v", None if tied else v)):
            if factor is None:
                self.v = None
            elif isinstance(factor, nn.Parameter):
                self.register_parameter(name, factor)
            else:
                self.register_buffer(name, factor)
        self.num_heads = 1 if u.ndim == 2 else len(u)
        self.num_queries, self.num_keys = u.shape[-2], v.shape[-2]

    def _factors(self) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(self.u.dtype, torch.float32)
        u, v = self.u.to(dtype), (self.u if self.v is None else self.v).to(dtype)
        return (u.abs(), v.abs()) if self._is_magnitude else (u, v)

    def matmul(self, x: Tensor) -> Tensor:
        """U (V^T x)."""
        return low_rank_product(*self._factors(), x)

    def rmatmul(self, x: Tensor) -> Tensor:
        """V (U^T x)."""
        u, v = self._factors()
        return low_rank_product(v, u, x)

    def attend(self, phi_q: Tensor, phi_k: Tensor, v: Tensor) -> Tensor:
        """Plain linear attention with r times the features: no numbers [N, M, D] are formed."""
        return low_rank_attention(*self._factors(), phi_q, phi_k, v)

    @property
    def rank(self) -> int:
        """r, the columns of U."""
        return self.u.shape[-1]

    def to_dense(self) -> Tensor:
        """M, [H, N_q, N_k]."""
        u, v = self._factors()
        dense = u @ v.mT
        return dense if dense.ndim == 3 else dense[None]

    def magnitude(self) -> LowRankMask:
        r"""The product of the absolute factors, :math:`|U| |V|^\top`."""
        return self if self._is_magnitude else self._magnitude_view()

    @property
    def refresh_cost(self) -> int:
        """That of a product: a dense matrix is formed by products."""
        return 0 if self._is_frozen() else self.product_cost

    @property
    def product_cost(self) -> int:
        """Entries of both factors."""
        return self.num_heads * (self.num_queries + self.num_keys) * self.rank


def low_rank_product(u: Tensor, v: Tensor, x: Tensor) -> Tensor:
    """U (V^T x), in at least float32, whatever the precision of x."""
    dtype = torch.promote_types(u.dtype, x.dtype)
    return (u.to(dtype) @ (v.to(dtype).mT @ x.to(dtype))).to(x.dtype)


def low_rank_attention(u: Tensor, v: Tensor, phi_q: Tensor, phi_k: Tensor, values: Tensor) -> Tensor:
    """Unnormalised attention with the mask U V^T, some columns of U and V at a time."""
    rank = u.shape[-1]

    def part(u: Tensor, v: Tensor, phi_q: Tensor, phi_k: Tensor, values: Tensor) -> Tensor:
        queries = (u.unsqueeze(-1) * phi_q.unsqueeze(-2)).flatten(-2)  # [..., H, N_q, r M]
        keys = (v.unsqueeze(-1) * phi_k.unsqueeze(-2)).flatten(-2)
        return queries @ (keys.mT @ values)

    u, v = u.to(values.dtype), v.to(values.dtype)
    widest = max(phi_q.numel(), phi_k.numel(), 1)
    step = max(1, min(rank, ELEMENTS_PER_CHUNK // widest))
    if step >= rank:
        return part(u, v, phi_q, phi_k, values)
    out = values.new_zeros(*phi_q.shape[:-1], values.shape[-1])
    for start in range(0, rank, step):
        chunk = slice(start, start + step)
        # Recomputed in the backward pass: kept features would take r times the memory of the inputs.
        out = out + checkpoint(part, u[..., chunk], v[..., chunk], phi_q, phi_k, values, use_reentrant=False)
    return out
