"""The perceptron of a transformer."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class MLP(nn.Module):
    """A perceptron with one hidden layer and GELU, on every token.

    Args:
        dim: Width of the tokens.
        hidden_dim: Width of the hidden layer.

    Example:
        >>> import torch
        >>> MLP(8, 32)(torch.randn(2, 5, 8)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(dim, hidden_dim)
        self.out = nn.Linear(hidden_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [..., C] to tokens [..., C]."""
        return self.out(F.gelu(self.hidden(x)))
