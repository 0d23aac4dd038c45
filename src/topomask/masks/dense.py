"""A mask given as a matrix."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from topomask.masks.base import Mask


class DenseMask(Mask):
    """A mask given as a matrix: O(N^2), for small graphs and comparisons.

    Args:
        matrix: [N_q, N_k] or [H, N_q, N_k]. An ``nn.Parameter`` is learnt, any other tensor is a buffer.

    Example:
        >>> import torch, topomask as tm
        >>> tm.DenseMask(torch.ones(3, 3)).to_dense().shape
        torch.Size([1, 3, 3])
    """

    matrix: Tensor

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        if matrix.ndim not in (2, 3) or not matrix.is_floating_point():
            raise ValueError(
                f"`matrix` must have shape [N_q, N_k] or [H, N_q, N_k] and a floating dtype, but has shape "
                f"{tuple(matrix.shape)} and dtype {matrix.dtype}. Convert it with .float()."
            )
        if isinstance(matrix, nn.Parameter):
            self.matrix = matrix
        else:
            self.register_buffer("matrix", matrix)
        self.num_heads = 1 if matrix.ndim == 2 else len(matrix)
        self.num_queries, self.num_keys = matrix.shape[-2:]

    def matmul(self, x: Tensor) -> Tensor:
        """M x."""
        return dense_product(self.to_dense(), x)

    def rmatmul(self, x: Tensor) -> Tensor:
        """M^T x."""
        return dense_product(self.to_dense().mT, x)

    def to_dense(self) -> Tensor:
        """M, [H, N_q, N_k]."""
        matrix = self.matrix.to(torch.promote_types(self.matrix.dtype, torch.float32))
        return matrix if matrix.ndim == 3 else matrix[None]

    def dense_weights(self) -> Tensor:
        """M itself, which is at hand."""
        return self.to_dense()

    def magnitude(self) -> DenseMask:
        """The absolute entries."""
        view = self._view()
        view._buffers.pop("matrix", None)
        view._parameters.pop("matrix", None)
        view.__dict__["matrix"] = self.matrix.abs()
        return view

    def _state(self) -> list[Tensor]:
        """The matrix, which is no parameter in a magnitude."""
        return [self.matrix]

    @property
    def product_cost(self) -> int:
        """Every entry of the matrix."""
        return self.num_heads * self.num_queries * self.num_keys

    @property
    def dense_cost(self) -> int:
        """Nothing: the matrix is given."""
        return 0


def dense_product(matrix: Tensor, x: Tensor) -> Tensor:
    """In at least float32, whatever the precision of x."""
    dtype = torch.promote_types(matrix.dtype, x.dtype)
    return (matrix.to(dtype) @ x.to(dtype)).to(x.dtype)
