"""Linear attention without a mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import torch
from torch import Tensor

from topomask.attention import feature_maps, inputs
from topomask.attention.checks import check_choice
from topomask.attention.inputs import FeatureMap, KeyGroups, Tokens
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
    r"""Linear attention in O(N M D): the same as :func:`topomask.masked_attention` with a mask of ones.

    .. math:: y_i = \phi(q_i)^\top \sum_j \phi(k_j)\,v_j^\top \Big/ |\phi(q_i)|^\top \sum_j |\phi(k_j)|

    The output of a query that attends to nothing is 0.

    Args:
        q: Queries, [..., H, N_q, D].
        k: Keys, [..., H_kv, N_k, D], with H a multiple of H_kv.
        v: Values, [..., H_kv, N_k, D_v].
        feature_map: See :func:`topomask.masked_attention`.
        normalizer: ``"absolute"`` (above), ``"signed"`` (without absolute values) or ``"none"``.
        key_padding_mask: [..., N_k], True for padding.

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
    check_choice("normalizer", normalizer, get_args(Normalizer))
    phi = feature_maps.resolve(feature_map)
    tokens = inputs.prepare(q, k, v, key_padding_mask)
    with inputs.without_autocast(q):
        tokens = inputs.widened(phi, tokens)
        out, is_accurate = _attend(phi, tokens, q.dtype, normalizer)
        if not is_accurate:
            out, _ = _attend(phi, tokens.double(), q.dtype, normalizer)
        return inputs.restore(out, q)


def _attend(
    phi: Callable[[Tensor], Tensor], tokens: Tokens, dtype: torch.dtype, normalizer: Normalizer
) -> tuple[Tensor, bool]:
    """Return the result, and whether its precision was sufficient."""
    phi_q, phi_k = unscaled = inputs.features(phi, tokens, KeyGroups(), dtype, shift=normalizer != "none")
    if normalizer != "none" and not isinstance(phi, feature_maps.ExponentialMap):
        phi_q, phi_k = inputs.rescaled(phi_q, phi_k, KeyGroups())
    # Written so that the gradients of features have the memory layout of features.
    out = phi_q @ (tokens.v.mT @ phi_k).mT
    if normalizer == "none":
        return out, True
    if normalizer == "absolute" and not feature_maps.is_nonnegative(phi):
        phi_q, phi_k = phi_q.abs(), phi_k.abs()
    found = divide(out, phi_q @ phi_k.sum(dim=-2)[..., None])
    lost = inputs.is_lost(found.total, lambda: inputs.may_vanish(phi, (phi_q, phi_k), unscaled, tokens.is_key))
    return found.out, not lost
