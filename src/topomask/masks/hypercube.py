"""Heat kernels of hypercubes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor, nn

from topomask.graph.input import check_integer
from topomask.masks.mask import FixedMask
from topomask.masks.operator import Cost, Operator
from topomask.walks.modulation import positive_per_head

# Levels joined into one matrix product: measured to be faster than fewer or more.
_MAX_LEVELS = 5
# Multiply-adds, at the rate of sparse products, per node and matrix product.
_COST = 3


class HypercubeMask(FixedMask):
    r"""The heat kernel of a hypercube: O(N log N) on its :math:`N = 2^{\text{dim}}` nodes.

    .. math:: M = e^{-\lambda L} = \bigotimes_{b=1}^{\text{dim}} \frac12
        \begin{pmatrix} 1 + e & 1 - e \\ 1 - e & 1 + e \end{pmatrix}, \qquad e = \mathrm{e}^{-2\lambda},
        \qquad M_{ij} = \Bigl(\frac{1 + e}{2}\Bigr)^{\text{dim} - h} \Bigl(\frac{1 - e}{2}\Bigr)^{h}

    where :math:`L = D - A` is the Laplacian of :func:`topomask.hypercube_graph` and h the number of bits in which the
    nodes i and j differ. Rows sum to 1, and entries decrease by :math:`\tanh \lambda` per bit. No entry is negative.

    Args:
        dim: Dimension of the cube.
        num_heads: Heads; each has its own :math:`\lambda > 0`, whose logarithm is learnt.
        rate: Initial :math:`\lambda`, one number or one per head.

    Example:
        >>> import torch, topomask as tm
        >>> tm.HypercubeMask(2, rate=0.5).to_dense()[0, 0]
        tensor([0.4678, 0.2162, 0.2162, 0.0999], grad_fn=<...>)

    References:
        Kondor and Lafferty (2002), Sec. 3.3; Choromanski et al. (2022).
    """

    _shown = ("dim", "num_heads")

    def __init__(self, dim: int, *, num_heads: int = 1, rate: float | Sequence[float] | Tensor = 0.5) -> None:
        check_integer("dim", dim, 0)
        start = positive_per_head("rate", rate, num_heads)
        super().__init__(num_heads=int(num_heads))
        self.dim = int(dim)
        self.log_rate = nn.Parameter(start.log())

    @property
    def rate(self) -> Tensor:
        r"""The rate :math:`\lambda` of every head, [H], in at least float32."""
        return self.log_rate.to(torch.promote_types(self.log_rate.dtype, torch.float32)).exp()

    def _operator(self) -> Operator:
        return HypercubeOperator(self)


class HypercubeOperator(Operator):
    """A Kronecker product of small matrices, each for a few bits of the node number."""

    def __init__(self, mask: HypercubeMask) -> None:
        super().__init__(mask, num_tokens=2**mask.dim)
        self._factors = _factors(mask.rate, mask.dim)

    def matmul(self, x: Tensor) -> Tensor:
        """Apply the factors one after another, each to its bits of the node number."""
        dtype = torch.promote_types(self._factors[0].dtype, x.dtype)
        out, before = x.to(dtype), 1
        for factor in self._factors:
            size = factor.shape[-1]
            split = out.reshape(*x.shape[:-2], before, size, x.shape[-2] // (before * size) * x.shape[-1])
            out = factor.to(dtype)[:, None] @ split
            before *= size
        return out.reshape(x.shape).to(x.dtype)

    rmatmul = matmul  # M is symmetric

    def to_dense(self) -> Tensor:
        """M, [H, N, N]."""
        return reduce(_kron, self._factors)

    def magnitude(self) -> HypercubeOperator:
        """The operator itself: nothing is negative."""
        return self

    def cost(self) -> Cost:
        """One pass over the nodes per factor; one multiplication per entry of the dense matrix."""
        return Cost(
            product=self.num_heads * self.num_keys * _COST * len(self._factors),
            dense=self.num_heads * self.num_queries * self.num_keys,
            refresh=0 if self._is_kept else sum(factor.numel() for factor in self._factors),
        )


def _factors(rate: Tensor, dim: int) -> list[Tensor]:
    """Return the Kronecker factors, [H, 2^levels, 2^levels] each, for a rate [H]."""
    parts = max(1, math.ceil(dim / _MAX_LEVELS))
    levels = [dim // parts + (part < dim % parts) for part in range(parts)]
    change = -torch.expm1(-2.0 * rate) / 2.0
    pair = torch.stack([1.0 - change, change], dim=-1)
    pair = torch.stack([pair, pair.flip(-1)], dim=-2)  # [H, 2, 2]
    # A power, so that a cube of one node also depends on its rate, with slope 0.
    one = rate[:, None, None] ** 0
    return [reduce(_kron, [pair] * count, one) for count in levels]


def _kron(first: Tensor, second: Tensor) -> Tensor:
    """Return the Kronecker product of square matrices per head, [H, R * S, R * S]."""
    size = first.shape[-1] * second.shape[-1]
    return (first[:, :, None, :, None] * second[:, None, :, None, :]).reshape(-1, size, size)
