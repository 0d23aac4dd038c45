"""A transformer encoder of tokens on a grid."""

from __future__ import annotations

from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn

from topomask.models.attention_variants import (
    AttentionFactory,
    AttentionOptions,
    TokenGrid,
    checked_options,
    make_attention,
)
from topomask.nn import MLP, PatchEmbedding, TransformerBlock
from topomask.nn.attention import HeadProjections
from topomask.nn.patches import check_shape

Pooling = Literal["cls", "mean"]


class GridEncoder(nn.Module):
    """Learned positions, blocks of a transformer, a norm, and one vector of all tokens.

    Args:
        shape: Size of the grid along every axis.
        dim: Width of the tokens.
        depth: Blocks.
        num_heads: Heads.
        mlp_ratio: Width of the perceptrons, in terms of ``dim``.
        attention: A name of :mod:`topomask.models.attention_variants`, or a function that makes a layer of attention,
            which keeps the weights that it comes with.
        options: What the name does not say. Every layer has its own mask, with its own walks.
        pooling: ``"mean"`` over the grid, or ``"cls"`` for a token of its own that sees and is seen by all. As this
            token is on no grid and all that is looked at in the end, the mask of the last block then has no effect.

    Example:
        >>> import torch
        >>> GridEncoder((4, 4), dim=16, depth=1, num_heads=2)(torch.randn(2, 4, 4, 16)).shape
        torch.Size([2, 16])
    """

    cls: nn.Parameter | None

    def __init__(
        self,
        shape: tuple[int, ...],
        dim: int,
        depth: int,
        num_heads: int,
        mlp_ratio: float = 4.0,
        attention: str | AttentionFactory = "grf",
        options: AttentionOptions | None = None,
        pooling: Pooling = "mean",
    ) -> None:
        super().__init__()
        if pooling not in get_args(Pooling):
            raise ValueError(f"`pooling` must be one of {get_args(Pooling)}, but is {pooling!r}.")
        if depth < 1:
            raise ValueError(f"`depth` must be at least 1, but is {depth}.")
        options = checked_options("options", options)
        grid = TokenGrid(tuple(shape), num_prefix=int(pooling == "cls"))
        hidden_dim = round(mlp_ratio * dim)

        def block(layer: int) -> TransformerBlock:
            layer_attention = make_attention(attention, grid, dim, num_heads, options.for_layer(layer))
            return TransformerBlock(layer_attention, MLP(dim, hidden_dim), _norm(dim), _norm(dim))

        self.grid = grid
        self.cls = nn.Parameter(torch.empty(1, dim)) if grid.num_prefix else None
        self.position = nn.Parameter(torch.empty(grid.num_nodes, dim))
        self.blocks = nn.ModuleList(block(layer) for layer in range(depth))
        self.norm = _norm(dim)
        if isinstance(attention, str):
            init_linear(self)
        else:
            # Attention that was passed in starts as it comes.
            for each in self.blocks:
                init_linear(cast(TransformerBlock, each).mlp)
        for parameter in (self.cls, self.position):
            if parameter is not None:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens on the grid, [B, *shape, C], to one vector each, [B, C]."""
        expected = (*self.grid.shape, self.position.shape[-1])
        check_shape("x", x, expected, "Pass one token of width `dim` per place of the grid `shape`.")
        x = x.flatten(1, -2) + self.position
        if self.cls is not None:
            x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1)
        for block in self.blocks:
            x = block(x)
        return self.norm(x).mean(dim=1) if self.cls is None else self.norm(x[:, 0])


def init_linear(module: nn.Module) -> None:
    """Start linear layers as the original vision transformer does: uniform weights after Glorot, no bias.

    Only those of this library's layers: masks start as they come.
    """
    for part in module.modules():
        if isinstance(part, HeadProjections | MLP | PatchEmbedding):
            for linear in part.children():
                if isinstance(linear, nn.Linear):
                    nn.init.xavier_uniform_(linear.weight)
                    if linear.bias is not None:
                        nn.init.zeros_(linear.bias)


def _norm(dim: int) -> nn.LayerNorm:
    return nn.LayerNorm(dim, eps=1e-6)
