"""Linear attention, with a mask and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from topomask.attention import feature_maps, inputs
from topomask.attention.inputs import FeatureMap, KeyGroups, Tokens
from topomask.attention.masked import attend_pairs, drop, make_operator, prepare_for
from topomask.attention.plan import Strategy, plan_attention
from topomask.masks.entries import PairSums
from topomask.masks.mask import Mask
from topomask.masks.operator import Normalizer, Operator
from topomask.ops.dense_attention import dense_attention
from topomask.ops.quotient import Attended, divide, to_precision
from topomask.ops.registration import is_transformed
from topomask.support.checks import check_choice

# Up to this many scores, calling an op of our own takes longer than running it.
_FEW_SCORES = 1 << 17


class _Linear(NamedTuple):
    """The arguments of every strategy of linear attention."""

    operator: Operator
    phi_q: Tensor
    phi_k: Tensor
    v: Tensor
    normalizer: Normalizer
    absolute: bool  # whether the normaliser needs absolute values of features
    dropout_p: float
    groups: KeyGroups
    needs_scale: bool  # whether features are scaled so that their products fit in float32


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

    where :math:`|M|` is ``mask.magnitude()``. If nothing is negative, this is the paper's normaliser; otherwise, unlike
    the paper's, it never crosses zero. The output of a query that attends to nothing is 0.

    Args:
        q: Queries, [..., H, N_q, D].
        k: Keys, [..., H_kv, N_k, D], with H a multiple of H_kv.
        v: Values, [..., H_kv, N_k, D_v].
        mask: A mask with a graph of its own, or ``mask.on(graph)``; with H heads or one.
        feature_map: ``"relu"``, ``"elu"``, ``"exp"``, ``"softmax"`` (FAVOR+), ``"identity"``, or a function from
            [..., D] to [..., M].
        normalizer: ``"absolute"`` (above), ``"signed"`` (the paper's sum, without absolute values) or ``"none"``.
            Default: ``mask.default_normalizer``, which is ``"absolute"`` unless a mask's magnitude is a poor bound.
        strategy: ``"pairs"``, ``"product"`` or ``"dense"``: the same result at different cost, see
            :func:`topomask.plan_attention`. ``"auto"`` picks the cheapest. Products by FFT or Chebyshev series have
            rounding noise (``operator.product_noise``): ``"product"`` treats a normaliser below it as zero.
        key_padding_mask: [..., N_k], True for padding, as in ``torch.nn.MultiheadAttention``.
        dropout_p: Probability of dropping a pair (i, j) from the numerator.
        query_nodes: Node of each query, [N_q]. Default: all nodes in order.
        key_nodes: Node of each key, [N_k]. Default: all nodes in order.

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
    tokens = prepare_for(operator, q, k, v, key_padding_mask, dropout_p)
    normalizer = operator.default_normalizer if normalizer is None else normalizer
    check_choice("normalizer", normalizer, get_args(Normalizer))
    with inputs.without_autocast(q):
        tokens = inputs.widened(phi, tokens)
        work = _make_work(phi, tokens, operator, q.dtype, normalizer, dropout_p)
        sizes = (work.phi_q.shape[-1], v.shape[-1], *tokens.q.shape[:2])
        plan = plan_attention(operator, *sizes, strategy=strategy, dropout=dropout_p > 0)
        found, scaled = _attend(work, plan.strategy)

        def vanishes() -> bool:
            return inputs.may_vanish(phi, scaled[1:3], work[1:3], tokens.is_key)

        if normalizer != "none" and inputs.is_lost(found.total, vanishes):
            fine = _make_work(phi, tokens.double(), operator, q.dtype, normalizer, dropout_p)
            found, _ = _attend(fine, plan.strategy)
        return inputs.restore(found.out, q)


def _make_work(
    phi: Callable[[Tensor], Tensor],
    tokens: Tokens,
    operator: Operator,
    dtype: torch.dtype,
    normalizer: Normalizer,
    dropout_p: float,
) -> _Linear:
    groups = KeyGroups(operator.key_groups, operator.num_graphs)
    phi_q, phi_k = inputs.features(phi, tokens, groups, dtype, shift=normalizer != "none")
    needs_scale = normalizer != "none" and not isinstance(phi, feature_maps.ExponentialMap)
    absolute = normalizer == "absolute" and not feature_maps.is_nonnegative(phi)
    return _Linear(operator, phi_q, phi_k, tokens.v, normalizer, absolute, dropout_p, groups, needs_scale)


def _attend(work: _Linear, strategy: str) -> tuple[Attended, _Linear]:
    """Return the result, and the arguments that it was computed from, rescaled if necessary."""
    found = _few_scores(work) if strategy == "dense" else None
    if found is not None:
        return found, work
    if work.needs_scale:
        phi_q, phi_k = inputs.rescaled(work.phi_q, work.phi_k, work.groups)
        work = work._replace(phi_q=phi_q, phi_k=phi_k)
    return {"pairs": _over_pairs, "product": _by_products, "dense": _dense}[strategy](work), work


def _by_products(work: _Linear) -> Attended:
    operator, phi_q, phi_k, v, normalizer = work[:5]
    if normalizer == "none":
        return Attended(operator.attend(phi_q, phi_k, v), v.new_ones(1))
    ones = v.new_ones(*v.shape[:-1], 1)
    magnitude = operator.magnitude() if normalizer == "absolute" else operator
    noise = magnitude.product_noise(phi_k.detach().abs())
    smallest = 0.0 if noise is None else (phi_q.detach().abs() * noise).sum(dim=-1, keepdim=True)
    if magnitude is operator and not work.absolute:
        joined = operator.attend(phi_q, phi_k, torch.cat([v, ones], dim=-1))
        return divide(joined[..., :-1], joined[..., -1:], smallest)
    return divide(operator.attend(phi_q, phi_k, v), magnitude.attend(phi_q.abs(), phi_k.abs(), ones), smallest)


def _few_scores(work: _Linear) -> Attended | None:
    """Dense attention on few tokens in as few steps as possible; None if it does not apply or numbers are extreme."""
    operator, v = work.operator, work.v
    if not inputs.can_look(v) or work.dropout_p or work.normalizer == "none":
        return None
    if not 0 < v.shape[:2].numel() * operator.num_queries * operator.num_keys <= _FEW_SCORES:
        return None
    weighted, total = _weigh(work, *_dense_weights(work))
    looked = total.detach()
    low, high = looked.aminmax()
    # Sums far from 0 and from the limits of float32 need neither rescaling nor a second look.
    if not (low.item() >= inputs.SAFE_LOW and high.item() <= inputs.SAFE_HIGH):
        return None
    return Attended((weighted @ v) / total, looked)


def _dense_weights(work: _Linear) -> tuple[Tensor, Tensor | None]:
    """The mask, and its magnitude if the normaliser uses it and it differs."""
    operator, dtype = work.operator, work.v.dtype
    magnitude = operator.magnitude() if work.normalizer == "absolute" else operator
    weights = to_precision(operator._dense_weights(), dtype)
    return weights, None if magnitude is operator else to_precision(magnitude._dense_weights(), dtype)


def _dense(work: _Linear) -> Attended:
    _, phi_q, phi_k, v, normalizer = work[:5]
    weights, magnitudes = _dense_weights(work)
    if work.dropout_p == 0 and not work.absolute and not is_transformed():
        return dense_attention(phi_q, phi_k, v, weights, magnitudes, normalize=normalizer != "none")
    weighted, total = _weigh(work, weights, magnitudes)
    numerator = drop(weighted, work.dropout_p) @ v
    return Attended(numerator, v.new_ones(1)) if normalizer == "none" else divide(numerator, total)


def _weigh(work: _Linear, weights: Tensor, magnitudes: Tensor | None) -> tuple[Tensor, Tensor]:
    """Masked scores, [B, H, N_q, N_k], and the normaliser, [B, H, N_q, 1]."""
    scores = work.phi_q @ work.phi_k.mT
    weighted = scores * weights
    if magnitudes is None and not work.absolute:
        return weighted, weighted.sum(dim=-1, keepdim=True)
    if work.absolute:
        scores = work.phi_q.abs() @ work.phi_k.abs().mT
    return weighted, (scores * (weights if magnitudes is None else magnitudes)).sum(dim=-1, keepdim=True)


def _over_pairs(work: _Linear) -> Attended:
    magnitudes, normalize = work.normalizer == "absolute", work.normalizer != "none"
    sums = PairSums(magnitudes=magnitudes, absolute=work.absolute, normalize=normalize)
    return attend_pairs(work.operator, work.phi_q, work.phi_k, work.v, None, sums, work.dropout_p)


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
        out, is_accurate = _attend_unmasked(phi, tokens, q.dtype, normalizer)
        if not is_accurate:
            out, _ = _attend_unmasked(phi, tokens.double(), q.dtype, normalizer)
        return inputs.restore(out, q)


def _attend_unmasked(
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
