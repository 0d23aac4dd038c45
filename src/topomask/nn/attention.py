"""Masked self-attention as a module."""

from __future__ import annotations

from typing import Any, Literal, get_args

from torch import Tensor, nn

from topomask.attention import FeatureMap, masked_attention, masked_softmax_attention
from topomask.graph import Graph
from topomask.masks import Mask
from topomask.masks.base import Normalizer
from topomask.planning import Strategy

Kind = Literal["linear", "softmax"]


class MaskedAttention(nn.Module):
    """Multi-head self-attention modulated by a graph mask.

    Args:
        dim: Width of the tokens.
        num_heads: Query heads.
        mask: The mask, with ``num_heads`` heads or one. The same mask may serve several layers.
        num_kv_heads: Heads of keys and values, a divisor of ``num_heads``. Default: ``num_heads``.
        kind: ``"linear"`` or ``"softmax"`` attention.
        feature_map: See :func:`topomask.masked_attention`; for linear attention only.
        normalizer: See :func:`topomask.masked_attention`. Default: that of the mask.
        strategy: See :func:`topomask.masked_attention`.
        dropout: Probability to drop a pair while training.
        bias: Whether projections have a bias.

    Example:
        >>> import torch, topomask as tm
        >>> layer = tm.nn.MaskedAttention(32, 4, tm.WalkMask(tm.grid_graph(8, 8), num_heads=4))
        >>> layer(torch.randn(2, 64, 32)).shape
        torch.Size([2, 64, 32])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        mask: Mask,
        *,
        num_kv_heads: int | None = None,
        kind: Kind = "linear",
        feature_map: FeatureMap = "relu",
        normalizer: Normalizer | None = None,
        strategy: Strategy = "auto",
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        for name, size in (("dim", dim), ("num_heads", num_heads), ("num_kv_heads", num_kv_heads)):
            if size < 1:
                raise ValueError(f"`{name}` must be at least 1, but is {size}.")
        choices: tuple[tuple[str, str, tuple[str, ...]], ...] = (
            ("kind", kind, get_args(Kind)),
            ("normalizer", mask.default_normalizer if normalizer is None else normalizer, get_args(Normalizer)),
            ("strategy", strategy, get_args(Strategy)),
        )
        for name, value, allowed in choices:
            if value not in allowed:
                raise ValueError(f"`{name}` must be one of {allowed}, but is {value!r}.")
        if not 0 <= dropout < 1:
            raise ValueError(f"`dropout` must lie in [0, 1), but is {dropout}.")
        if dim % num_heads:
            raise ValueError(f"`dim` must be a multiple of `num_heads`, but they are {dim} and {num_heads}.")
        if num_heads % num_kv_heads:
            raise ValueError(
                f"`num_heads` must be a multiple of `num_kv_heads`, but they are {num_heads} and {num_kv_heads}."
            )
        if mask.num_heads not in (1, num_heads):
            raise ValueError(f"`mask` must have one head or {num_heads}, but has {mask.num_heads}.")
        if kind == "softmax" and feature_map != "relu":
            raise ValueError("`feature_map` is for kind='linear'; softmax attention has none. Leave it out.")
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.kind: Kind = kind
        self.normalizer: Normalizer | None = normalizer
        self.strategy: Strategy = strategy
        self.dropout = dropout
        self.feature_map = feature_map
        self.mask = mask
        head_dim = dim // num_heads
        self.query = nn.Linear(dim, num_heads * head_dim, bias=bias)
        self.key = nn.Linear(dim, num_kv_heads * head_dim, bias=bias)
        self.value = nn.Linear(dim, num_kv_heads * head_dim, bias=bias)
        self.out = nn.Linear(dim, dim, bias=bias)

    def forward(
        self,
        x: Tensor,
        graph: Graph | None = None,
        features: Any = None,
        key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            x: Tokens, [B, N, C], or [N, C] on a block-diagonal graph.
            graph: The graph of these tokens. Default: the mask's own. Inside ``torch.compile``, use the mask's own.
            features: Walks already sampled on ``graph`` by ``layer.mask.sample(graph)``, in a data loader, say.
            key_padding_mask: [B, N], True where a token is padding.

        Returns:
            Tokens, same shape.
        """
        if graph is None and features is not None:
            raise ValueError("`features` are walks on a graph. Pass the graph too.")
        mask = self.mask if graph is None else self.mask.on(graph, features)
        q, k, v = self._heads(self.query(x)), self._heads(self.key(x)), self._heads(self.value(x))
        dropout_p = self.dropout if self.training else 0.0
        if self.kind == "linear":
            out = masked_attention(
                q,
                k,
                v,
                mask,
                feature_map=self.feature_map,
                normalizer=self.normalizer,
                strategy=self.strategy,
                key_padding_mask=key_padding_mask,
                dropout_p=dropout_p,
            )
        else:
            out = masked_softmax_attention(
                q,
                k,
                v,
                mask,
                normalizer=self.normalizer,
                strategy=self.strategy,
                key_padding_mask=key_padding_mask,
                dropout_p=dropout_p,
            )
        return self.out(out.transpose(-2, -3).flatten(-2))

    def _heads(self, x: Tensor) -> Tensor:
        """[..., N, C] to [..., H, N, D]."""
        heads = self.num_heads if x.shape[-1] == self.query.out_features else self.num_kv_heads
        return x.unflatten(-1, (heads, -1)).transpose(-2, -3)
