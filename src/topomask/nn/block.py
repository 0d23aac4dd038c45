"""A transformer block, and its MLP."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from topomask.attention.inputs import check_tokens


class TransformerBlock(nn.Module):
    """A pre-norm transformer block: attention, then an MLP, each with a norm and a residual connection.

    Args:
        attention: Any layer that maps tokens to tokens.
        mlp: A layer that maps each token on its own.
        attention_norm: Norm before ``attention``.
        mlp_norm: Norm before ``mlp``.

    Example:
        >>> import torch, topomask as tm
        >>> block = tm.nn.TransformerBlock(
        ...     tm.nn.MaskedAttention(32, 4, tm.WalkMask(tm.grid_graph(8, 8), num_heads=4)),
        ...     tm.nn.MLP(32, 128),
        ...     torch.nn.LayerNorm(32),
        ...     torch.nn.LayerNorm(32),
        ... )
        >>> block(torch.randn(2, 64, 32)).shape
        torch.Size([2, 64, 32])
    """

    def __init__(self, attention: nn.Module, mlp: nn.Module, attention_norm: nn.Module, mlp_norm: nn.Module) -> None:
        super().__init__()
        self.attention_norm, self.attention = attention_norm, attention
        self.mlp_norm, self.mlp = mlp_norm, mlp

    def forward(self, x: Tensor, *context: Any, **options: Any) -> Tensor:
        """Map tokens to tokens; a graph, and options such as ``key_padding_mask``, are passed to the attention."""
        check_tokens(x, self.attention_norm)
        x = x + self.attention(self.attention_norm(x), *context, **options)
        return x + self.mlp(self.mlp_norm(x))


class MLP(nn.Module):
    """An MLP with one hidden layer and GELU, applied to each token.

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
        """Map tokens [..., C] to tokens [..., C]."""
        check_tokens(x, self.hidden)
        return self.out(F.gelu(self.hidden(x)))
