"""A transformer encoder for tokens on a grid."""

from __future__ import annotations

from functools import partial
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
from topomask.support.checks import check_choice, check_sizes

Pooling = Literal["cls", "mean"]


class GridEncoder(nn.Module):
    """Add learnt positions, apply transformer blocks and a norm, and pool all tokens to one vector.

    Args:
        shape: Size of the grid along each axis.
        dim, depth, num_heads, mlp_ratio: As in :class:`VisionTransformer`.
        attention: A name in :mod:`topomask.models.attention_variants`, or a function that makes an attention layer,
            whose weights are not initialised again.
        options: Options of the attention. Each layer has its own mask, with its own walks.
        pooling: ``"mean"`` over the grid, or ``"cls"`` for a CLS token that sees and is seen by all. Only this token is
            read out, and it is not on the grid, so the mask of the last block then has no effect.

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
        check_choice("pooling", pooling, get_args(Pooling))
        check_sizes(depth=depth)
        options = checked_options("options", options)
        make_norm = partial(nn.LayerNorm, dim, eps=1e-6)
        grid = TokenGrid(tuple(shape), num_prefix=int(pooling == "cls"))
        hidden_dim = round(mlp_ratio * dim)

        def block(layer: int) -> TransformerBlock:
            layer_attention = make_attention(attention, grid, dim, num_heads, options.for_layer(layer))
            return TransformerBlock(layer_attention, MLP(dim, hidden_dim), make_norm(), make_norm())

        self.grid = grid
        self.cls = nn.Parameter(torch.empty(1, dim)) if grid.num_prefix else None
        self.position = nn.Parameter(torch.empty(grid.num_nodes, dim))
        self.blocks = nn.ModuleList(block(layer) for layer in range(depth))
        self.norm = make_norm()
        if isinstance(attention, str):
            init_linear(self)
        else:
            # Attention that was passed in keeps its own initialisation.
            for each in self.blocks:
                init_linear(cast(TransformerBlock, each).mlp)
        for parameter in (self.cls, self.position):
            if parameter is not None:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens on the grid, [B, *shape, C], to one vector per input, [B, C]."""
        expected = (*self.grid.shape, self.position.shape[-1])
        check_shape("x", x, expected, "Pass one token of width `dim` per position on the grid `shape`.")
        x = x.flatten(1, -2) + self.position
        if self.cls is not None:
            x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1)
        for block in self.blocks:
            x = block(x)
        return self.norm(x).mean(dim=1) if self.cls is None else self.norm(x[:, 0])


def init_linear(module: nn.Module) -> None:
    """Initialise linear layers as in the original vision transformer: Glorot uniform weights, zero biases.

    This affects only layers of this library; masks keep their own initialisation.
    """
    for part in module.modules():
        if isinstance(part, HeadProjections | MLP | PatchEmbedding):
            for linear in part.children():
                if isinstance(linear, nn.Linear):
                    nn.init.xavier_uniform_(linear.weight)
                    if linear.bias is not None:
                        nn.init.zeros_(linear.bias)
