"""Self-attention as a module, with a mask and without."""

from __future__ import annotations

from abc import ABC
from typing import Any, Literal, get_args

from torch import Tensor, nn
from torch.nn import functional as F

from topomask.attention import feature_maps
from topomask.attention.inputs import FeatureMap, padding_rows
from topomask.attention.linear import masked_attention
from topomask.attention.plan import Strategy
from topomask.masks.mask import Mask
from topomask.masks.operator import Normalizer, Operator

Kind = Literal["linear", "softmax"]


class HeadProjections(nn.Module, ABC):
    """Projections of tokens to queries, keys and values per head, and of attended values back to tokens.

    Args:
        dim: Width of the tokens.
        num_heads: Query heads.
        num_kv_heads: Heads of keys and values, a divisor of ``num_heads``. Default: ``num_heads``.
        dropout: Probability to drop a pair while training.
        bias: Whether projections have a bias.
    """

    def __init__(
        self, dim: int, num_heads: int, num_kv_heads: int | None = None, dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        for name, size in (("dim", dim), ("num_heads", num_heads), ("num_kv_heads", num_kv_heads)):
            if size < 1:
                raise ValueError(f"`{name}` must be at least 1, but is {size}.")
        if not 0 <= dropout < 1:
            raise ValueError(f"`dropout` must lie in [0, 1), but is {dropout}.")
        if dim % num_heads:
            raise ValueError(f"`dim` must be a multiple of `num_heads`, but they are {dim} and {num_heads}.")
        if num_heads % num_kv_heads:
            raise ValueError(
                f"`num_heads` must be a multiple of `num_kv_heads`, but they are {num_heads} and {num_kv_heads}."
            )
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.dropout = dropout
        head_dim = dim // num_heads
        self.query = nn.Linear(dim, num_heads * head_dim, bias=bias)
        self.key = nn.Linear(dim, num_kv_heads * head_dim, bias=bias)
        self.value = nn.Linear(dim, num_kv_heads * head_dim, bias=bias)
        self.out = nn.Linear(dim, dim, bias=bias)

    @property
    def dropout_p(self) -> float:
        """Probability to drop a pair now."""
        return self.dropout if self.training else 0.0

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [..., H, N, D], keys and values [..., H_kv, N, D] of tokens [..., N, C]."""
        q, k, v = self.query(x), self.key(x), self.value(x)
        return _split(q, self.num_heads), _split(k, self.num_kv_heads), _split(v, self.num_kv_heads)

    def join(self, attended: Tensor) -> Tensor:
        """Tokens [..., N, C] of attended values [..., H, N, D]."""
        return self.out(attended.transpose(-2, -3).flatten(-2))


def _split(x: Tensor, num_heads: int) -> Tensor:
    return x.unflatten(-1, (num_heads, -1)).transpose(-2, -3)


def checked_feature_map(kind: str, feature_map: FeatureMap | None) -> FeatureMap | None:
    """The feature map of a kind of attention, None for softmax; a ValueError if there is no such kind or map."""
    if kind not in get_args(Kind):
        raise ValueError(f"`kind` must be one of {get_args(Kind)}, but is {kind!r}.")
    if kind == "softmax":
        if feature_map is not None:
            raise ValueError(
                f"`feature_map` is for kind='linear'; softmax attention has none, but it is {feature_map!r}. Leave it "
                "out."
            )
        return None
    feature_map = "relu" if feature_map is None else feature_map
    feature_maps.resolve(feature_map)
    return feature_map


class Attention(HeadProjections):
    """Multi-head self-attention without a mask: every token sees every other.

    Args:
        dim: Width of the tokens.
        num_heads: Query heads.
        num_kv_heads: Heads of keys and values, a divisor of ``num_heads``. Default: ``num_heads``.
        kind: ``"linear"``, in O(N), or ``"softmax"``, in O(N^2).
        feature_map: See :func:`topomask.masked_attention`; for linear attention only. Default: ``"relu"``.
        normalizer: See :func:`topomask.linear_attention`; for linear attention only.
        dropout: Probability to drop a pair while training; for softmax attention only.
        bias: Whether projections have a bias.

    Example:
        >>> import torch, topomask as tm
        >>> tm.nn.Attention(32, 4, kind="softmax")(torch.randn(2, 64, 32)).shape
        torch.Size([2, 64, 32])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        kind: Kind = "linear",
        feature_map: FeatureMap | None = None,
        normalizer: Normalizer = "absolute",
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__(dim, num_heads, num_kv_heads, dropout, bias)
        feature_map = checked_feature_map(kind, feature_map)
        if normalizer not in get_args(Normalizer):
            raise ValueError(f"`normalizer` must be one of {get_args(Normalizer)}, but is {normalizer!r}.")
        if kind == "softmax" and normalizer != "absolute":
            raise ValueError("`normalizer` is for kind='linear'; softmax attention has its own. Leave it out.")
        if kind == "linear" and dropout > 0:
            raise ValueError(
                "`dropout` acts on pairs, which linear attention never forms. Leave it out, or pass kind='softmax'."
            )
        self.kind: Kind = kind
        self.feature_map = feature_map
        self.normalizer: Normalizer = normalizer

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Attend.

        Args:
            x: Tokens, [..., N, C].
            key_padding_mask: [..., N], True where a token is padding.

        Returns:
            Tokens, same shape.
        """
        q, k, v = self.project(x)
        if self.kind == "linear":
            phi, normalizer = self.feature_map, self.normalizer
            assert phi is not None
            from topomask.attention.unmasked import linear_attention

            out = linear_attention(q, k, v, feature_map=phi, normalizer=normalizer, key_padding_mask=key_padding_mask)
            return self.join(out)
        seen = None
        if key_padding_mask is not None:
            batch = x.shape[:-2]
            rows = padding_rows(key_padding_mask, batch.numel(), x.shape[-2], x.device)
            padded = rows.expand(batch.numel(), -1).unflatten(0, batch) if batch else rows[0]
            seen = ~padded[..., None, None, :]
            # Whatever stands in padding, NaN included, must not be multiplied by 0.
            k, v = (tokens.masked_fill(padded[..., None, :, None], 0.0) for tokens in (k, v))
        grouped = self.num_kv_heads != self.num_heads
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=self.dropout_p, enable_gqa=grouped)
        return self.join(out)


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
            from topomask.attention.softmax import masked_softmax_attention

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
