"""A learnable decay with distance."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from topomask.walks.modulation import positive_per_head


class ExponentialDecay(nn.Module):
    r"""A learnable exponential decay with distance, :math:`f(d) = e^{-a d}`, per head.

    Args:
        num_heads: Heads H; each has its own rate a > 0, learnt through its logarithm.
        rate: Rate to start from, one number or one per head.

    Example:
        >>> import torch, topomask as tm
        >>> decay = tm.ExponentialDecay(num_heads=2, rate=[0.5, 1.0])
        >>> decay(torch.tensor([[0.0], [2.0]]))
        tensor([[1.0000, 1.0000],
                [0.3679, 0.1353]], grad_fn=<...>)
    """

    def __init__(self, num_heads: int = 1, rate: float | Sequence[float] | Tensor = 0.5) -> None:
        super().__init__()
        self.log_rate = nn.Parameter(positive_per_head("rate", rate, num_heads).log())

    @property
    def rate(self) -> Tensor:
        """The rate a of every head, [H], in at least float32."""
        return self.log_rate.to(torch.promote_types(self.log_rate.dtype, torch.float32)).exp()

    def forward(self, distances: Tensor) -> Tensor:
        """The decay at ``distances`` [..., 1], [..., H]."""
        return torch.exp(-self.rate * distances)

    def extra_repr(self) -> str:
        """Shown when the module is printed."""
        return f"num_heads={len(self.log_rate)}"
