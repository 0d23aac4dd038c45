"""A mask given by two thin matrices."""

from __future__ import annotations

from torch import Tensor, nn

from topomask.masks.base import Mask


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
    v: Tensor

    def __init__(self, u: Tensor, v: Tensor | None = None) -> None:
        super().__init__()
        v = u if v is None else v
        if u.ndim not in (2, 3) or u.ndim != v.ndim or u.shape[-1] != v.shape[-1] or u.shape[:-2] != v.shape[:-2]:
            raise ValueError(
                f"`u` and `v` must have shapes [N_q, r] and [N_k, r], or [H, N_q, r] and [H, N_k, r], "
                f"but have shapes {tuple(u.shape)} and {tuple(v.shape)}."
            )
        for name, factor in (("u", u), ("v", v)):
            if isinstance(factor, nn.Parameter):
                self.register_parameter(name, factor)
            else:
                self.register_buffer(name, factor)
        self.num_heads = 1 if u.ndim == 2 else len(u)
        self.num_queries, self.num_keys = u.shape[-2], v.shape[-2]
        self._is_magnitude = False

    def _factors(self) -> tuple[Tensor, Tensor]:
        return (self.u.abs(), self.v.abs()) if self._is_magnitude else (self.u, self.v)

    def matmul(self, x: Tensor) -> Tensor:
        """U (V^T x)."""
        u, v = self._factors()
        return u.to(x.dtype) @ (v.to(x.dtype).mT @ x)

    def rmatmul(self, x: Tensor) -> Tensor:
        """V (U^T x)."""
        u, v = self._factors()
        return v.to(x.dtype) @ (u.to(x.dtype).mT @ x)

    def to_dense(self) -> Tensor:
        """M, [H, N_q, N_k]."""
        u, v = self._factors()
        dense = u @ v.mT
        return dense if dense.ndim == 3 else dense[None]

    def magnitude(self) -> LowRankMask:
        r"""The product of the absolute factors, :math:`|U| |V|^\top`."""
        if self._is_magnitude:
            return self
        view = self._view()
        view._is_magnitude = True
        return view

    @property
    def product_cost(self) -> int:
        """Entries of both factors."""
        return self.num_heads * (self.num_queries + self.num_keys) * self.u.shape[-1]
