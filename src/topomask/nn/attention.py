"""Self-attention without a mask as a module."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor
from torch.nn import functional as F

from topomask.attention_inputs import FeatureMap
from topomask.masks.base import Normalizer
from topomask.nn.projections import HeadProjections
from topomask.unmasked_attention import linear_attention

Kind = Literal["linear", "softmax"]


def check_kind(kind: str, feature_map: FeatureMap) -> None:
    """A ValueError unless there is this kind of attention, and it takes this feature map."""
    if kind not in get_args(Kind):
        raise ValueError(f"`kind` must be one of {get_args(Kind)}, but is {kind!r}.")
    if kind == "softmax" and feature_map != "relu":
        raise ValueError("`feature_map` is for kind='linear'; softmax attention has none. Leave it out.")


class Attention(HeadProjections):
    """Multi-head self-attention without a mask: every token sees every other.

    Args:
        dim: Width of the tokens.
        num_heads: Query heads.
        num_kv_heads: Heads of keys and values, a divisor of ``num_heads``. Default: ``num_heads``.
        kind: ``"linear"``, in O(N), or ``"softmax"``, in O(N^2).
        feature_map: See :func:`topomask.masked_attention`; for linear attention only.
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
        feature_map: FeatureMap = "relu",
        normalizer: Normalizer = "absolute",
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__(dim, num_heads, num_kv_heads, dropout, bias)
        check_kind(kind, feature_map)
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
            out = linear_attention(q, k, v, feature_map=phi, normalizer=normalizer, key_padding_mask=key_padding_mask)
            return self.join(out)
        seen = None
        if key_padding_mask is not None:
            seen = ~key_padding_mask[..., None, None, :]
            # Whatever stands in padding, NaN included, must not be multiplied by 0.
            k, v = (tokens.masked_fill(key_padding_mask[..., None, :, None], 0.0) for tokens in (k, v))
        grouped = self.num_kv_heads != self.num_heads
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=self.dropout_p, enable_gqa=grouped)
        return self.join(out)
