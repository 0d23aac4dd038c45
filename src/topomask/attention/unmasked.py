"""Linear attention without a mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import torch
from torch import Tensor

from topomask.attention import feature_maps
from topomask.attention.inputs import (
    FeatureMap,
    KeyGroups,
    Tokens,
    any_small,
    features,
    is_lost,
    prepare,
    rescaled,
    restore,
    widened,
    without_autocast,
)
from topomask.masks.operator import Normalizer
from topomask.ops.quotient import divide


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    feature_map: FeatureMap = "relu",
    normalizer: Normalizer = "absolute",
    key_padding_mask: Tensor | None = None,
) -> Tensor:
    r"""Linear attention in O(N M D): what :func:`topomask.masked_attention` is with a mask of ones.

    .. math:: y_i = \phi(q_i)^\top \sum_j \phi(k_j)\,v_j^\top \Big/ |\phi(q_i)|^\top \sum_j |\phi(k_j)|

    A query that attends to nothing gives 0.

    Args:
        q: Queries, [..., H, N_q, D].
        k: Keys, [..., H_kv, N_k, D], with H a multiple of H_kv.
        v: Values, [..., H_kv, N_k, D_v].
        feature_map: See :func:`topomask.masked_attention`.
        normalizer: ``"absolute"`` (above), ``"signed"`` (without absolute values) or ``"none"``.
        key_padding_mask: [..., N_k], True where a key is padding.

    Returns:
        Attended values, [..., H, N_q, D_v], in the dtype of ``q``.

    Example:
        >>> import torch, topomask as tm
        >>> q, k, v = torch.randn(3, 1, 2, 64, 16)
        >>> tm.linear_attention(q, k, v).shape
        torch.Size([1, 2, 64, 16])

    References:
        Katharopoulos et al. (2020), Transformers are RNNs; Reid et al. (2025), Eq. 3.
    """
    if normalizer not in get_args(Normalizer):
        raise ValueError(f"`normalizer` must be one of {get_args(Normalizer)}, but is {normalizer!r}.")
    phi = feature_maps.resolve(feature_map)
    inputs = prepare(q, k, v, key_padding_mask)
    with without_autocast(q):
        inputs = widened(phi, inputs)
        out, is_complete = _attend(phi, inputs, q.dtype, normalizer)
        if not is_complete:
            out, _ = _attend(phi, inputs.double(), q.dtype, normalizer)
        return restore(out, q)


def _attend(
    phi: Callable[[Tensor], Tensor], inputs: Tokens, dtype: torch.dtype, normalizer: Normalizer
) -> tuple[Tensor, bool]:
    """Attention, and whether its precision was enough."""
    phi_q, phi_k = unscaled = features(phi, inputs, KeyGroups(), dtype, shift=normalizer != "none")
    if normalizer != "none" and not isinstance(phi, feature_maps.ExponentialMap):
        phi_q, phi_k = rescaled(phi_q, phi_k, KeyGroups())
    # Written so that the gradients of features come in the layout of features.
    out = phi_q @ (inputs.v.mT @ phi_k).mT
    if normalizer == "none":
        return out, True
    if normalizer == "absolute" and not feature_maps.is_nonnegative(phi):
        phi_q, phi_k = phi_q.abs(), phi_k.abs()
    found = divide(out, phi_q @ phi_k.sum(dim=-2)[..., None])

    def vanishes() -> bool:
        positive = feature_maps.is_positive(phi)
        is_small = any_small(phi_q, unscaled[0], None, positive)
        return is_small or any_small(phi_k, unscaled[1], inputs.is_key, positive)

    return found.out, not is_lost(found.total, vanishes)
