"""Masked self-attention as a module."""

from __future__ import annotations

from typing import Any, get_args

from torch import Tensor

from topomask.attention import masked_attention, masked_softmax_attention
from topomask.attention.inputs import FeatureMap
from topomask.attention.plan import Strategy
from topomask.masks.mask import Mask
from topomask.masks.operator import Normalizer, Operator
from topomask.nn.attention import Kind, checked_feature_map
from topomask.nn.projections import HeadProjections


class MaskedAttention(HeadProjections):
    """Multi-head self-attention modulated by a graph mask.

    Args:
        dim: Width of the tokens.
        num_heads: Query heads.
        mask: The mask, with ``num_heads`` heads or one. The same mask may serve several layers.
        num_kv_heads: Heads of keys and values, a divisor of ``num_heads``. Default: ``num_heads``.
        kind: ``"linear"`` or ``"softmax"`` attention.
        feature_map: See :func:`topomask.masked_attention`; for linear attention only. Default: ``"relu"``.
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
        feature_map: FeatureMap | None = None,
        normalizer: Normalizer | None = None,
        strategy: Strategy = "auto",
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__(dim, num_heads, num_kv_heads, dropout, bias)
        feature_map = checked_feature_map(kind, feature_map)
        if not isinstance(mask, Mask):
            raise ValueError(
                f"`mask` must be a topomask.Mask, but is a {type(mask).__name__}. Wrap a matrix in DenseMask."
            )
        normalizers, strategies = get_args(Normalizer), get_args(Strategy)
        if kind == "softmax":
            # Exponentials need a quotient, and the entries of the mask.
            normalizers, strategies = ("absolute", "signed"), ("auto", "pairs", "dense")
        for name, value, allowed in (
            ("normalizer", mask.default_normalizer if normalizer is None else normalizer, normalizers),
            ("strategy", strategy, strategies),
        ):
            if value not in allowed:
                raise ValueError(f"`{name}` must be one of {allowed} for kind={kind!r}, but is {value!r}.")
        if mask.num_heads not in (1, num_heads):
            raise ValueError(f"`mask` must have one head or {num_heads}, but has {mask.num_heads}.")
        self.kind: Kind = kind
        self.normalizer: Normalizer | None = normalizer
        self.strategy: Strategy = strategy
        self.feature_map = feature_map
        self.mask = mask

    def forward(
        self,
        x: Tensor,
        graph: Any = None,
        walks: Any = None,
        key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            x: Tokens, [B, N, C], or [N, C] on a block-diagonal graph.
            graph: The graph of these tokens. Default: the mask's own.
            walks: Walks already sampled on ``graph`` by ``layer.mask.sample(graph)``, in a data loader, say.
            key_padding_mask: [B, N], True where a token is padding.

        Returns:
            Tokens, same shape.
        """
        if graph is None and walks is not None:
            raise ValueError("`walks` are on a graph. Pass the graph too.")
        return self.attend(x, self.mask.on(graph, walks), key_padding_mask)

    def attend(self, x: Tensor, operator: Operator, key_padding_mask: Tensor | None = None) -> Tensor:
        """Attend with an operator of this layer's mask, ``layer.mask.on(graph)``, that several layers share, say."""
        q, k, v = self.project(x)
        if self.kind == "linear":
            assert self.feature_map is not None
            out = masked_attention(
                q,
                k,
                v,
                operator,
                feature_map=self.feature_map,
                normalizer=self.normalizer,
                strategy=self.strategy,
                key_padding_mask=key_padding_mask,
                dropout_p=self.dropout_p,
            )
        else:
            out = masked_softmax_attention(
                q,
                k,
                v,
                operator,
                normalizer=self.normalizer,
                strategy=self.strategy,
                key_padding_mask=key_padding_mask,
                dropout_p=self.dropout_p,
            )
        return self.join(out)
