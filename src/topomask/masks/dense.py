"""Masks given as a matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from topomask.masks.mask import FixedMask, Mask, register
from topomask.masks.operator import Cost, Operator
from topomask.masks.selected import gather


class DenseMask(FixedMask):
    """A mask given as a matrix: O(N^2), for small graphs and comparisons.

    Args:
        matrix: [N_q, N_k] or [H, N_q, N_k]. An ``nn.Parameter`` is learnt, any other tensor becomes a buffer.

    Example:
        >>> import torch, topomask as tm
        >>> tm.DenseMask(torch.ones(3, 3)).to_dense().shape
        torch.Size([1, 3, 3])
    """

    matrix: Tensor

    def __init__(self, matrix: Tensor) -> None:
        if matrix.ndim not in (2, 3) or not matrix.is_floating_point():
            raise ValueError(
                f"`matrix` must have shape [N_q, N_k] or [H, N_q, N_k] and a floating dtype, but has shape "
                f"{tuple(matrix.shape)} and dtype {matrix.dtype}. Convert it with .float()."
            )
        super().__init__(num_heads=1 if matrix.ndim == 2 else len(matrix))
        register(self, "matrix", matrix)

    def _operator(self) -> Operator:
        return DenseOperator(self, self.matrix)


class DenseOperator(Operator):
    """A dense matrix per head, given as [N_q, N_k] or [H, N_q, N_k].

    If ``positive``, no entry is negative. ``refresh`` is the number of multiply-adds that computed the matrix.
    """

    def __init__(self, mask: Mask, matrix: Tensor, positive: bool = False, refresh: int = 0) -> None:
        super().__init__(mask, num_tokens=matrix.shape[-2])
        self.num_keys = matrix.shape[-1]
        self.dtype, self.device = torch.promote_types(matrix.dtype, torch.float32), matrix.device
        self._widen(matrix)
        matrix = matrix.to(self.dtype)
        self._matrix = matrix if matrix.ndim == 3 else matrix[None]
        self._positive, self._refresh = positive, refresh

    def matmul(self, x: Tensor) -> Tensor:
        """M x."""
        return self._multiply(self._matrix, x)

    def rmatmul(self, x: Tensor) -> Tensor:
        """M^T x."""
        return self._multiply(self._matrix.mT, x)

    def _multiply(self, matrix: Tensor, x: Tensor) -> Tensor:
        dtype = torch.promote_types(matrix.dtype, x.dtype)
        return (matrix.to(dtype) @ x.to(dtype)).to(x.dtype)

    def submatrix(self, query_nodes: Tensor | None, key_nodes: Tensor | None) -> Tensor:
        """Rows and columns of the matrix."""
        rows = gather(self._matrix, query_nodes)
        return rows if key_nodes is None else rows.index_select(-1, key_nodes.to(rows.device))

    def magnitude(self) -> DenseOperator:
        """The absolute entries."""
        if self._positive:
            return self
        return self._once("magnitude", lambda: self._copy(_matrix=self._matrix.abs()))

    def cost(self) -> Cost:
        """Every entry of the matrix for a product, and nothing for the matrix itself."""
        product = self.num_heads * self.num_queries * self.num_keys
        return Cost(product, dense=0, refresh=0 if self._is_kept else self._refresh)
