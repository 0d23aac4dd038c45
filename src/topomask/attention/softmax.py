"""Softmax attention modulated by a mask."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from topomask.attention.inputs import Tokens, is_lost, restore, without_autocast
from topomask.attention.masked import attend_pairs, drop, make_operator, make_plan, prepare_for
from topomask.attention.plan import Strategy
from topomask.masks.entries import PairSums
from topomask.masks.mask import Mask
from topomask.masks.operator import Normalizer, Operator
from topomask.ops.pair_attention.reference import weighted_powers
from topomask.ops.quotient import Attended, divide, to_precision

# Normalisers are at least about 1, unless weights decide that are smaller than any but by a factor of e^42.
_SAFE_LOW = 2.0**-30


def masked_softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | Operator,
    *,
    normalizer: Normalizer | None = None,
    strategy: Strategy = "auto",
    key_padding_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    query_nodes: Tensor | None = None,
    key_nodes: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    r"""Softmax attention modulated by a graph mask, on the entries of the mask alone.

    .. math:: y_i = \sum_j M_{ij}\,e^{q_i^\top k_j/\sqrt D}\,v_j \Big/ \sum_j |M|_{ij}\,e^{q_i^\top k_j/\sqrt D}

    Where the mask is sparse this takes time and memory in proportion to its entries.

    Args:
        q: Queries, [..., H, N_q, D].
        k: Keys, [..., H_kv, N_k, D], with H a multiple of H_kv.
        v: Values, [..., H_kv, N_k, D_v].
        mask: The mask, on its own graph, or ``mask.on(graph)``; with H heads or one.
        normalizer: ``"absolute"`` (above) or ``"signed"`` (with M itself). There is no ``"none"``: without a
            quotient the exponentials would overflow. Default: ``mask.default_normalizer``.
        strategy: ``"pairs"`` or ``"dense"``; ``"auto"`` takes the cheapest, and where all entries are 1 PyTorch's
            own attention, which keeps no weights and has no second derivatives; ``"dense"`` has them.
        key_padding_mask: [..., N_k], True where a key is padding.
        dropout_p: Probability to drop a pair (i, j) from the numerator.
        query_nodes: Node of every query, [N_q]. Default: all nodes in order.
        key_nodes: Node of every key, [N_k]. Default: all nodes in order.
        scale: Factor of the scores. Default: 1 / sqrt(D).

    Returns:
        Attended values, [..., H, N_q, D_v], in the dtype of ``q``.

    Example:
        >>> import torch, topomask as tm
        >>> mask = tm.WalkMask(tm.grid_graph(8, 8), symmetric=False, seed=0)
        >>> q, k, v = torch.randn(3, 1, 2, 64, 16)
        >>> tm.masked_softmax_attention(q, k, v, mask).shape
        torch.Size([1, 2, 64, 16])

    References:
        Reid et al. (2025), Eq. 2 and Eq. 25.
    """
    operator = make_operator(mask, query_nodes, key_nodes)
    inputs = prepare_for(operator, q, k, v, key_padding_mask, dropout_p)
    normalizer = operator.default_normalizer if normalizer is None else normalizer
    if normalizer not in ("absolute", "signed"):
        raise ValueError(f"`normalizer` must be 'absolute' or 'signed' for softmax attention, but is {normalizer!r}.")
    with without_autocast(q):
        scale = 1.0 / math.sqrt(max(1, q.shape[-1])) if scale is None else scale
        plan = make_plan(inputs, operator, q.shape[-1], strategy, "softmax", dropout_p)
        attend = _plain_softmax if plan.is_plain else _over_pairs if plan.strategy == "pairs" else _dense
        found = attend(inputs._replace(q=inputs.q * scale), operator, normalizer, dropout_p)
        # Scores may leave float32, or weights decide that are next to nothing. A query without keys has a total of 0.
        if is_lost(found.total, lambda: False, _SAFE_LOW):
            inputs = inputs.double()
            found = attend(inputs._replace(q=inputs.q * scale), operator, normalizer, dropout_p)
        return restore(found.out, q)


def _over_pairs(inputs: Tokens, operator: Operator, normalizer: str, dropout_p: float) -> Attended:
    sums = PairSums(softmax=True, magnitudes=normalizer == "absolute")
    return attend_pairs(operator, inputs.q, inputs.k, inputs.v, inputs.is_key, sums, dropout_p)


def _dense(inputs: Tokens, operator: Operator, normalizer: str, dropout_p: float) -> Attended:
    scores = inputs.q @ inputs.k.mT
    if inputs.is_key is not None:
        scores = scores.masked_fill(~inputs.is_key.mT, -torch.inf)
    values, magnitudes = to_precision(operator._dense_weights(), scores.dtype), operator.magnitude()._dense_weights()
    weights = to_precision(magnitudes, scores.dtype) if normalizer == "absolute" else values
    powers = weighted_powers(scores, weights.detach().abs(), _row_max)
    numerator = drop(powers * values, dropout_p) @ inputs.v
    return divide(numerator, (powers * weights).sum(dim=-1, keepdim=True))


def _row_max(x: Tensor) -> Tensor:
    return x.amax(dim=-1, keepdim=True) if x.shape[-1] else x.new_zeros(*x.shape[:-1], 1)


def _plain_softmax(inputs: Tokens, *_: Any) -> Attended:
    """Softmax attention without a mask, by PyTorch, which keeps no weights where all have one width."""
    q, k, v, is_key = inputs
    width = v.shape[-1]
    short = width - q.shape[-1]
    if short > 0:
        q, k = F.pad(q, (0, short)), F.pad(k, (0, short))
    elif short < 0:
        v = F.pad(v, (0, -short))
    if is_key is None:
        out = F.scaled_dot_product_attention(q, k, v, scale=1.0)[..., :width]
        return Attended(out, _one_if_finite(out))
    # Where all is padding, queries may look at it, as long as nothing comes of it.
    some = is_key.any(dim=-2, keepdim=True)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=(is_key | ~some).mT, scale=1.0)[..., :width]
    out = out.masked_fill(~some, 0.0)
    return Attended(out, _one_if_finite(out))


def _one_if_finite(out: Tensor) -> Tensor:
    """1 in place of a normaliser that PyTorch keeps to itself; not a number where scores were too large for it."""
    return torch.where(out.detach().isfinite().all(), 1.0, torch.nan)
