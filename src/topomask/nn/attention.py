"""Self-attention without a mask as a module."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor
from torch.nn import functional as F

from topomask.attention import feature_maps
from topomask.attention.inputs import FeatureMap, padding_rows
from topomask.attention.unmasked import linear_attention
from topomask.masks.operator import Normalizer
from topomask.nn.projections import HeadProjections

Kind = Literal["linear", "softmax"]


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
