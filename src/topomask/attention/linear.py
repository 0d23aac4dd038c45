"""Linear attention modulated by a mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from topomask.attention import feature_maps
from topomask.attention.inputs import (
    SAFE_HIGH,
    SAFE_LOW,
    FeatureMap,
    KeyGroups,
    Tokens,
    any_small,
    can_look,
    features,
    is_lost,
    rescaled,
    restore,
    widened,
    without_autocast,
)
from topomask.attention.masked import attend_pairs, drop, make_operator, make_plan, prepare_for
from topomask.attention.plan import Strategy
from topomask.masks.entries import PairSums
from topomask.masks.mask import Mask
from topomask.masks.operator import Normalizer, Operator
from topomask.ops.dense_attention import dense_attention
from topomask.ops.quotient import Attended, divide, to_precision
from topomask.ops.registration import is_transformed

# Scores for which an op of our own takes longer to call than to run.
_FEW_SCORES = 1 << 17


class _Linear(NamedTuple):
    """What a way to compute linear attention is given."""

    operator: Operator
    phi_q: Tensor
    phi_k: Tensor
    v: Tensor
    normalizer: Normalizer
    nonnegative: bool
    dropout_p: float
    groups: KeyGroups
    needs_scale: bool  # whether features may be scaled so that their products fit


def masked_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | Operator,
    *,
    feature_map: FeatureMap = "relu",
    normalizer: Normalizer | None = None,
    strategy: Strategy = "auto",
    key_padding_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    query_nodes: Tensor | None = None,
    key_nodes: Tensor | None = None,
) -> Tensor:
    r"""Linear attention modulated by a graph mask, in the time of a few mask products.

    .. math:: y_i = \sum_j M_{ij}\,\phi(q_i)^\top\phi(k_j)\,v_j \Big/ \sum_j |M|_{ij}\,|\phi(q_i)|^\top|\phi(k_j)|

    where :math:`|M|` is ``mask.magnitude()``. Where nothing is negative this is the paper's normaliser; elsewhere,
    unlike it, it never crosses zero. A query that attends to nothing gives 0.

    Args:
        q: Queries, [..., H, N_q, D].
        k: Keys, [..., H_kv, N_k, D], with H a multiple of H_kv.
        v: Values, [..., H_kv, N_k, D_v].
        mask: The mask, on its own graph, or ``mask.on(graph)``; with H heads or one.
        feature_map: ``"relu"``, ``"elu"``, ``"exp"``, ``"softmax"`` (FAVOR+), ``"identity"``, or a function from
            [..., D] to [..., M].
        normalizer: ``"absolute"`` (above), ``"signed"`` (the paper's sum, without absolute values) or ``"none"``.
            Default: ``mask.default_normalizer``, which is ``"absolute"`` for all masks but those whose magnitude says
            little about them.
        strategy: ``"pairs"``, ``"product"`` or ``"dense"``: the same answer at different cost;
            see :func:`topomask.plan_attention`. ``"auto"`` takes the cheapest. Products by FFT or Chebyshev series have
            rounding noise (``operator.product_noise``); through ``"product"``, a query whose normaliser is below it
            counts as one that attends to nothing.
        key_padding_mask: [..., N_k], True where a key is padding, as in ``torch.nn.MultiheadAttention``.
        dropout_p: Probability to drop a pair (i, j) from the numerator.
        query_nodes: Node of every query, [N_q]. Default: all nodes in order.
        key_nodes: Node of every key, [N_k]. Default: all nodes in order.

    Returns:
        Attended values, [..., H, N_q, D_v], in the dtype of ``q``.

    Example:
        >>> import torch, topomask as tm
        >>> mask = tm.WalkMask(tm.grid_graph(8, 8), num_heads=2, seed=0)
        >>> q, k, v = torch.randn(3, 1, 2, 64, 16)
        >>> tm.masked_attention(q, k, v, mask).shape
        torch.Size([1, 2, 64, 16])

    References:
        Reid et al. (2025), Eq. 12.
    """
    phi = feature_maps.resolve(feature_map)
    operator = make_operator(mask, query_nodes, key_nodes)
    inputs = prepare_for(operator, q, k, v, key_padding_mask, dropout_p)
    normalizer = operator.default_normalizer if normalizer is None else normalizer
    if normalizer not in get_args(Normalizer):
        raise ValueError(f"`normalizer` must be one of {get_args(Normalizer)}, but is {normalizer!r}.")
    with without_autocast(q):
        inputs = widened(phi, inputs)
        work = _make_work(phi, inputs, operator, q.dtype, normalizer, dropout_p)
        plan = make_plan(inputs, operator, work.phi_q.shape[-1], strategy, "linear", dropout_p)
        found, scaled = _attend(work, plan.strategy)
        if normalizer != "none" and is_lost(found.total, lambda: _vanishes(scaled, work, phi, inputs.is_key)):
            fine = _make_work(phi, inputs.double(), operator, q.dtype, normalizer, dropout_p)
            found, _ = _attend(fine, plan.strategy)
        return restore(found.out, q)


def _make_work(
    phi: Callable[[Tensor], Tensor],
    inputs: Tokens,
    operator: Operator,
    dtype: torch.dtype,
    normalizer: Normalizer,
    dropout_p: float,
) -> _Linear:
    groups = KeyGroups(operator.key_groups, operator.num_graphs)
    phi_q, phi_k = features(phi, inputs, groups, dtype, shift=normalizer != "none")
    needs_scale = normalizer != "none" and not isinstance(phi, feature_maps.ExponentialMap)
    nonnegative = feature_maps.is_nonnegative(phi)
    return _Linear(operator, phi_q, phi_k, inputs.v, normalizer, nonnegative, dropout_p, groups, needs_scale)


def _attend(work: _Linear, strategy: str) -> tuple[Attended, _Linear]:
    """The result, and what it was computed from, with a scale where that was needed."""
    if strategy == "dense":
        found = _few_scores(work)
        if found is not None:
            return found, work
    if work.needs_scale:
        phi_q, phi_k = rescaled(work.phi_q, work.phi_k, work.groups)
        work = work._replace(phi_q=phi_q, phi_k=phi_k)
    return {"pairs": _over_pairs, "product": _by_products, "dense": _dense}[strategy](work), work


def _vanishes(scaled: _Linear, work: _Linear, phi: Callable[[Tensor], Tensor], is_key: Tensor | None) -> bool:
    """Whether products of features may have been too small for float32."""
    positive = feature_maps.is_positive(phi)
    is_small = any_small(scaled.phi_q, work.phi_q, None, positive)
    return is_small or any_small(scaled.phi_k, work.phi_k, is_key, positive)


def _by_products(work: _Linear) -> Attended:
    operator, phi_q, phi_k, v, normalizer = work[:5]
    if normalizer == "none":
        return _undivided(operator.attend(phi_q, phi_k, v))
    ones = v.new_ones(*v.shape[:-1], 1)
    magnitude = operator.magnitude() if normalizer == "absolute" else operator
    noise = magnitude.product_noise(phi_k.detach().abs())
    nothing = 0.0 if noise is None else (phi_q.detach().abs() * noise).sum(dim=-1, keepdim=True)
    if magnitude is operator and (work.nonnegative or normalizer == "signed"):
        joined = operator.attend(phi_q, phi_k, torch.cat([v, ones], dim=-1))
        return divide(joined[..., :-1], joined[..., -1:], nothing)
    return divide(operator.attend(phi_q, phi_k, v), magnitude.attend(phi_q.abs(), phi_k.abs(), ones), nothing)


def _undivided(out: Tensor) -> Attended:
    return Attended(out, out.new_ones(1))


def _few_scores(work: _Linear) -> Attended | None:
    """Dense attention on few tokens in as few steps as can be; None where it is not that, or numbers are extreme."""
    operator, v = work.operator, work.v
    if not can_look(v) or work.dropout_p or work.normalizer == "none":
        return None
    if not 0 < v.shape[:2].numel() * operator.num_queries * operator.num_keys <= _FEW_SCORES:
        return None
    weighted, total = _weigh(work, *_dense_weights(work))
    looked = total.detach()
    low, high = looked.aminmax()
    # Sums that are neither 0 nor close to what float32 can hold need neither a scale nor a second look.
    if not (low.item() >= SAFE_LOW and high.item() <= SAFE_HIGH):
        return None
    return Attended((weighted @ v) / total, looked)


def _dense_weights(work: _Linear) -> tuple[Tensor, Tensor | None]:
    """The mask, and its magnitude where the normaliser takes that and it differs."""
    operator, dtype = work.operator, work.v.dtype
    magnitude = operator.magnitude() if work.normalizer == "absolute" else operator
    weights = to_precision(operator._dense_weights(), dtype)
    return weights, None if magnitude is operator else to_precision(magnitude._dense_weights(), dtype)


def _dense(work: _Linear) -> Attended:
    _, phi_q, phi_k, v, normalizer = work[:5]
    weights, magnitudes = _dense_weights(work)
    if work.dropout_p == 0 and (work.nonnegative or normalizer != "absolute") and not is_transformed():
        return dense_attention(phi_q, phi_k, v, weights, magnitudes, normalize=normalizer != "none")
    weighted, total = _weigh(work, weights, magnitudes)
    numerator = drop(weighted, work.dropout_p) @ v
    return _undivided(numerator) if normalizer == "none" else divide(numerator, total)


def _weigh(work: _Linear, weights: Tensor, magnitudes: Tensor | None) -> tuple[Tensor, Tensor]:
    """Masked scores, [B, H, N_q, N_k], and the normaliser, [B, H, N_q, 1]."""
    _, phi_q, phi_k, _, normalizer = work[:5]
    scores = phi_q @ phi_k.mT
    weighted = scores * weights
    if magnitudes is None and (work.nonnegative or normalizer != "absolute"):
        return weighted, weighted.sum(dim=-1, keepdim=True)
    positive = scores if work.nonnegative or normalizer != "absolute" else phi_q.abs() @ phi_k.abs().mT
    return weighted, (positive * (weights if magnitudes is None else magnitudes)).sum(dim=-1, keepdim=True)


def _over_pairs(work: _Linear) -> Attended:
    absolute = work.normalizer == "absolute"
    sums = PairSums(
        magnitudes=absolute, absolute=absolute and not work.nonnegative, normalize=work.normalizer != "none"
    )
    return attend_pairs(work.operator, work.phi_q, work.phi_k, work.v, None, sums, work.dropout_p)
