"""Self-attention as a module, with and without a mask."""

from __future__ import annotations

from abc import ABC
from typing import Any, Literal, get_args

from torch import Tensor, nn
from torch.nn import functional as F

from topomask.attention import feature_maps
from topomask.attention.inputs import FeatureMap, check_tokens, padding_rows
from topomask.attention.linear import linear_attention, masked_attention
from topomask.attention.plan import Strategy
from topomask.masks.mask import Mask, not_a_mask
from topomask.masks.operator import Normalizer, Operator
from topomask.support.checks import check_choice, check_probabilities, check_sizes

Kind = Literal["linear", "softmax"]


class HeadProjections(nn.Module, ABC):
    """Project tokens to queries, keys and values per head, and attended values back to tokens.

    The arguments are those of :class:`Attention`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        num_kv_heads: int | None,
        kind: Kind,
        feature_map: FeatureMap | None,
        dropout: float,
        bias: bool,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_sizes(dim=dim, num_heads=num_heads, num_kv_heads=num_kv_heads)
        check_probabilities(dropout=dropout)
        if dim % num_heads:
            raise ValueError(f"`dim` must be a multiple of `num_heads`, but they are {dim} and {num_heads}.")
        if num_heads % num_kv_heads:
            raise ValueError(
                f"`num_heads` must be a multiple of `num_kv_heads`, but they are {num_heads} and {num_kv_heads}."
            )
        feature_map = checked_feature_map(kind, feature_map)
        self.num_heads, self.num_kv_heads, self.dropout = num_heads, num_kv_heads, dropout
        self.kind: Kind = kind
        head_dim = dim // num_heads
        self.query = nn.Linear(dim, num_heads * head_dim, bias=bias)
        self.key = nn.Linear(dim, num_kv_heads * head_dim, bias=bias)
        self.value = nn.Linear(dim, num_kv_heads * head_dim, bias=bias)
        self.out = nn.Linear(dim, dim, bias=bias)
        # After the projections: it may be a module, and the order of parameters is that of checkpoints.
        self.feature_map = feature_map

    @property
    def dropout_p(self) -> float:
        """The current probability of dropping a pair: 0 in evaluation."""
        return self.dropout if self.training else 0.0

    def project(self, x: Tensor, num_tokens: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Project tokens [..., N, C] to queries [..., H, N, D], and to keys and values [..., H_kv, N, D]."""
        check_tokens(x, self.query, num_tokens)
        heads = ((self.query, self.num_heads), (self.key, self.num_kv_heads), (self.value, self.num_kv_heads))
        q, k, v = (project(x).unflatten(-1, (count, -1)).transpose(-2, -3) for project, count in heads)
        return q, k, v

    def join(self, attended: Tensor) -> Tensor:
        """Project attended values [..., H, N, D] to tokens [..., N, C]."""
        return self.out(attended.transpose(-2, -3).flatten(-2))


def checked_feature_map(kind: str, feature_map: FeatureMap | None) -> FeatureMap | None:
    """Check the kind of attention and its feature map, and return the map: "relu" by default, None for softmax."""
    check_choice("kind", kind, get_args(Kind))
    if kind == "linear":
        feature_map = "relu" if feature_map is None else feature_map
        feature_maps.resolve(feature_map)
    elif feature_map is not None:
        raise ValueError(
            f"`feature_map` is for kind='linear'; softmax attention has none, but it is {feature_map!r}. Leave it out."
        )
    return feature_map


class Attention(HeadProjections):
    """Multi-head self-attention without a mask: each token attends to all others.

    Args:
        dim: Width of the tokens.
        num_heads: Number of query heads.
        num_kv_heads: Number of key and value heads, a divisor of ``num_heads``. Default: ``num_heads``.
        kind: ``"linear"``, in O(N), or ``"softmax"``, in O(N^2).
        feature_map: See :func:`topomask.masked_attention`; for linear attention only. Default: ``"relu"``.
        normalizer: See :func:`topomask.linear_attention`; for linear attention only.
        dropout: Probability of dropping a pair in training; for softmax attention only.
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
        super().__init__(dim, num_heads, num_kv_heads, kind, feature_map, dropout, bias)
        check_choice("normalizer", normalizer, get_args(Normalizer))
        if kind == "softmax" and normalizer != "absolute":
            raise ValueError(f"`normalizer` is for kind='linear', but is {normalizer!r} for 'softmax'. Leave it out.")
        if kind == "linear" and dropout > 0:
            raise ValueError(
                f"`dropout` is {dropout}, but acts on pairs, which linear attention never computes. Leave it out, or "
                "pass kind='softmax'."
            )
        self.normalizer: Normalizer = normalizer

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Attend.

        Args:
            x: Tokens, [..., N, C].
            key_padding_mask: [..., N], True for padding.

        Returns:
            Tokens, [..., N, C].
        """
        q, k, v = self.project(x)
        if self.kind == "linear":
            phi, normalizer = self.feature_map, self.normalizer
            assert phi is not None
            out = linear_attention(q, k, v, feature_map=phi, normalizer=normalizer, key_padding_mask=key_padding_mask)
            return self.join(out)
        seen = None
        if key_padding_mask is not None:
            batch = x.shape[:-2]
            rows = padding_rows(key_padding_mask, batch.numel(), x.shape[-2], x.device)
            padded = rows.expand(batch.numel(), -1).unflatten(0, batch) if batch else rows[0]
            seen = ~padded[..., None, None, :]
            # The contents of padding may be NaN, which a weight of 0 would not remove.
            k, v = (tokens.masked_fill(padded[..., None, :, None], 0.0) for tokens in (k, v))
        grouped = self.num_kv_heads != self.num_heads
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=self.dropout_p, enable_gqa=grouped)
        return self.join(out)


class MaskedAttention(HeadProjections):
    """Multi-head self-attention modulated by a graph mask.

    Args:
        dim, num_heads, num_kv_heads, feature_map, bias: As in :class:`Attention`.
        mask: A mask with ``num_heads`` heads or one. Several layers may share it.
        kind: ``"linear"`` or ``"softmax"`` attention.
        normalizer: See :func:`topomask.masked_attention`. Default: that of the mask.
        strategy: See :func:`topomask.masked_attention`.
        dropout: Probability of dropping a pair in training.

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
        super().__init__(dim, num_heads, num_kv_heads, kind, feature_map, dropout, bias)
        if not isinstance(mask, Mask):
            raise not_a_mask(mask)
        normalizers, strategies = get_args(Normalizer), get_args(Strategy)
        if kind == "softmax":
            # Exponentials must be normalised, and need the entries of the mask.
            normalizers, strategies = ("absolute", "signed"), ("auto", "pairs", "dense")
        used = mask.default_normalizer if normalizer is None else normalizer
        check_choice("normalizer", used, normalizers, f" for kind={kind!r}")
        check_choice("strategy", strategy, strategies, f" for kind={kind!r}")
        if mask.num_heads not in (1, num_heads):
            raise ValueError(
                f"`mask` must have one head or {num_heads}, but has {mask.num_heads}. Build it with `num_heads`."
            )
        self.normalizer: Normalizer | None = normalizer
        self.strategy: Strategy = strategy
        self.mask = mask

    def forward(
        self, x: Tensor, graph: Any = None, walks: Any = None, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        """Attend.

        Args:
            x: Tokens, [B, N, C], or [N, C] on a block-diagonal graph.
            graph: The graph of these tokens. Default: the mask's own.
            walks: Walks on ``graph`` that ``layer.mask.sample(graph)`` returned, for example in a data loader.
            key_padding_mask: [B, N], True for padding.

        Returns:
            Tokens of the same shape.
        """
        if graph is None and walks is not None:
            raise ValueError("`walks` belong to a graph, but `graph` is None. Pass the graph too.")
        return self.attend(x, self.mask.on(graph, walks), key_padding_mask)

    def attend(self, x: Tensor, operator: Operator, key_padding_mask: Tensor | None = None) -> Tensor:
        """Attend with an operator ``layer.mask.on(graph)``, which several layers may share."""
        q, k, v = self.project(x, operator.num_keys)
        options: dict[str, Any] = {
            "normalizer": self.normalizer,
            "strategy": self.strategy,
            "key_padding_mask": key_padding_mask,
            "dropout_p": self.dropout_p,
        }
        if self.feature_map is not None:
            return self.join(masked_attention(q, k, v, operator, feature_map=self.feature_map, **options))
        from topomask.attention.softmax import masked_softmax_attention

        return self.join(masked_softmax_attention(q, k, v, operator, **options))
