"""Softmax attention modulated by a mask."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from topomask.attention.inputs import Tokens, is_lost, restore, row_max, without_autocast
from topomask.attention.masked import attend_pairs, drop, make_operator, prepare_for
from topomask.attention.plan import Strategy, plan_attention
from topomask.masks.entries import PairSums
from topomask.masks.mask import Mask
from topomask.masks.operator import Normalizer, Operator
from topomask.ops.pair_attention.reference import weighted_powers
from topomask.ops.quotient import Attended, divide, to_precision
from topomask.support.checks import check_choice

# The shift makes normalisers at least about 1, unless the keys that count have weights e^42 times smaller than others.
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
    r"""Softmax attention modulated by a graph mask, over the entries of the mask only.

    .. math:: y_i = \sum_j M_{ij}\,e^{q_i^\top k_j/\sqrt D}\,v_j \Big/ \sum_j |M|_{ij}\,e^{q_i^\top k_j/\sqrt D}

    With a sparse mask, time and memory are proportional to the number of its entries.

    Args:
        q: Queries, [..., H, N_q, D].
        k: Keys, [..., H_kv, N_k, D], with H a multiple of H_kv.
        v: Values, [..., H_kv, N_k, D_v].
        mask: A mask with a graph of its own, or ``mask.on(graph)``; with H heads or one.
        normalizer: ``"absolute"`` (above) or ``"signed"`` (with M itself). There is no ``"none"``: the exponentials
            would overflow. Default: ``mask.default_normalizer``.
        strategy: ``"pairs"`` or ``"dense"``. ``"auto"`` picks the cheapest; if all entries are 1, it uses PyTorch's own
            attention, which stores no weights and has no second derivatives (``"dense"`` does).
        key_padding_mask: [..., N_k], True for padding.
        dropout_p: Probability of dropping a pair (i, j) from the numerator.
        query_nodes: Node of each query, [N_q]. Default: all nodes in order.
        key_nodes: Node of each key, [N_k]. Default: all nodes in order.
        scale: Factor that multiplies the scores. Default: 1 / sqrt(D).

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
    check_choice("normalizer", normalizer, ("absolute", "signed"), " for softmax attention")
    with without_autocast(q):
        scale = 1.0 / math.sqrt(max(1, q.shape[-1])) if scale is None else scale
        sizes = (q.shape[-1], v.shape[-1], *inputs.q.shape[:2])
        plan = plan_attention(operator, *sizes, strategy=strategy, kernel="softmax", dropout=dropout_p > 0)
        attend = _plain_softmax if plan.is_plain else _over_pairs if plan.strategy == "pairs" else _dense
        found = attend(inputs._replace(q=inputs.q * scale), operator, normalizer, dropout_p)
        # Scores may overflow float32, or only tiny weights may count. A query without keys has a total of 0.
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
    weights = values = to_precision(operator._dense_weights(), scores.dtype)
    if normalizer == "absolute":
        weights = to_precision(operator.magnitude()._dense_weights(), scores.dtype)
    powers = weighted_powers(scores, weights.detach().abs(), row_max)
    numerator = drop(powers * values, dropout_p) @ inputs.v
    return divide(numerator, (powers * weights).sum(dim=-1, keepdim=True))


def _plain_softmax(inputs: Tokens, *_: Any) -> Attended:
    """Softmax attention without a mask, by PyTorch, which stores no weights if q, k and v have the same width."""
    q, k, v, is_key = inputs
    width = v.shape[-1]
    short = width - q.shape[-1]
    if short > 0:
        q, k = F.pad(q, (0, short)), F.pad(k, (0, short))
    elif short < 0:
        v = F.pad(v, (0, -short))
    if is_key is None:
        out = F.scaled_dot_product_attention(q, k, v, scale=1.0)[..., :width]
    else:
        # If everything is padding, queries attend to it, and the result is discarded.
        some = is_key.any(dim=-2, keepdim=True)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=(is_key | ~some).mT, scale=1.0)[..., :width]
        out = out.masked_fill(~some, 0.0)
    # PyTorch does not return the normaliser: 1 stands for it, or NaN if scores overflowed.
    return Attended(out, torch.where(out.detach().isfinite().all(), 1.0, torch.nan))
