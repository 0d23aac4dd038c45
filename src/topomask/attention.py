"""Attention modulated by a mask."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from topomask import feature_maps
from topomask.attention_inputs import FeatureMap, Tokens, features, finite, prepare, restore
from topomask.graph_input import check_nodes
from topomask.masks import Mask
from topomask.masks.base import Normalizer
from topomask.ops.dense_attention import dense_attention
from topomask.ops.pair_attention import reference as pairs
from topomask.ops.quotient import divide
from topomask.planning import Plan, Strategy, is_plain, plan_attention


class _Linear(NamedTuple):
    """What a way to compute linear attention is given."""

    mask: Mask
    phi_q: Tensor
    phi_k: Tensor
    v: Tensor
    normalizer: Normalizer
    nonnegative: bool
    dropout_p: float


def masked_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
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
        mask: The mask, with H heads or one.
        feature_map: ``"relu"``, ``"elu"``, ``"exp"``, ``"softmax"`` (FAVOR+), ``"identity"``, or a function from
            [..., D] to [..., M].
        normalizer: ``"absolute"`` (above), ``"signed"`` (the paper's sum, without absolute values) or ``"none"``.
            Default: ``mask.default_normalizer``, which is ``"absolute"`` for all masks but those whose magnitude says
            little about them.
        strategy: ``"pairs"``, ``"features"`` or ``"dense"``: the same answer at different cost;
            see :func:`topomask.plan_attention`. ``"auto"`` takes the cheapest. Products by FFT or Chebyshev series have
            rounding noise (``mask.product_noise``); through ``"features"``, a query whose normaliser is below it
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
    inputs, mask = _prepare(q, k, v, mask, key_padding_mask, dropout_p, query_nodes, key_nodes)
    normalizer = mask.default_normalizer if normalizer is None else normalizer
    if normalizer not in get_args(Normalizer):
        raise ValueError(f"`normalizer` must be one of {get_args(Normalizer)}, but is {normalizer!r}.")
    with torch.autocast(inputs.q.device.type, enabled=False):
        phi_q, phi_k = features(phi, inputs, mask.key_groups, q.dtype, rescale=normalizer != "none")
        plan = _plan(inputs, mask, phi_q.shape[-1], strategy, "linear", dropout_p)
        attend = {"pairs": _attend_pairs, "features": _attend_features, "dense": _attend_dense}[plan.strategy]
        nonnegative = feature_maps.is_nonnegative(phi)
        work = _Linear(mask, phi_q, phi_k, inputs.v, normalizer, nonnegative, dropout_p)
        return restore(attend(work), q)


def masked_softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
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
        mask: The mask, with H heads or one.
        normalizer: ``"absolute"`` (above) or ``"signed"`` (with M itself). There is no ``"none"``: without a
            quotient the exponentials would overflow. Default: ``mask.default_normalizer``.
        strategy: ``"pairs"`` or ``"dense"``; ``"auto"`` takes the cheapest, and where the mask hides nothing PyTorch's
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
    inputs, mask = _prepare(q, k, v, mask, key_padding_mask, dropout_p, query_nodes, key_nodes)
    normalizer = mask.default_normalizer if normalizer is None else normalizer
    if normalizer not in ("absolute", "signed"):
        raise ValueError(f"`normalizer` must be 'absolute' or 'signed' for softmax attention, but is {normalizer!r}.")
    with torch.autocast(inputs.q.device.type, enabled=False):
        scaled = inputs.q * (1.0 / math.sqrt(q.shape[-1]) if scale is None else scale)
        plan = _plan(inputs, mask, q.shape[-1], strategy, "softmax", dropout_p)
        inputs = inputs._replace(q=scaled)
        if is_plain(mask, strategy, dropout_p > 0):
            return restore(_plain_softmax(inputs), q)
        attend = _softmax_pairs if plan.strategy == "pairs" else _softmax_dense
        return restore(attend(inputs, mask, normalizer, dropout_p), q)


def _prepare(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    key_padding_mask: Tensor | None,
    dropout_p: float,
    query_nodes: Any,
    key_nodes: Any,
) -> tuple[Tokens, Mask]:
    if not isinstance(mask, Mask):
        raise ValueError(f"`mask` must be a topomask.Mask, but is a {type(mask).__name__}. Wrap a matrix in DenseMask.")
    if query_nodes is not None or key_nodes is not None:
        queries = None if query_nodes is None else check_nodes(query_nodes, mask.num_queries, "query_nodes")
        keys = None if key_nodes is None else check_nodes(key_nodes, mask.num_keys, "key_nodes")
        mask = mask.select(queries, keys)
    inputs = prepare(q, k, v, key_padding_mask)
    if mask.num_heads not in (1, q.shape[-3]):
        raise ValueError(f"`mask` must have one head or the {q.shape[-3]} of `q`, but has {mask.num_heads}.")
    if (q.shape[-2], k.shape[-2]) != (mask.num_queries, mask.num_keys):
        raise ValueError(
            f"`mask` is for {mask.num_queries} queries and {mask.num_keys} keys, but `q` has {q.shape[-2]} and `k` has "
            f"{k.shape[-2]}. Say with query_nodes and key_nodes which nodes they are, or use mask.on(graph)."
        )
    if not 0 <= dropout_p < 1:
        raise ValueError(f"`dropout_p` must lie in [0, 1), but is {dropout_p}.")
    return inputs, mask


def _plan(inputs: Tokens, mask: Mask, num_features: int, strategy: Strategy, kernel: Any, dropout_p: float) -> Plan:
    batch, heads = inputs.q.shape[:2]
    width = inputs.v.shape[-1]
    return plan_attention(
        mask, num_features, width, batch, heads, strategy=strategy, kernel=kernel, dropout=dropout_p > 0
    )


def _attend_features(work: _Linear) -> Tensor:
    mask, phi_q, phi_k, v, normalizer = work[:5]
    if normalizer == "none":
        return mask.attend(phi_q, phi_k, v)
    ones = v.new_ones(*v.shape[:-1], 1)
    magnitude = mask.magnitude() if normalizer == "absolute" else mask
    noise = magnitude.product_noise(phi_k.detach().abs())
    nothing = 0.0 if noise is None else (phi_q.detach().abs() * noise).sum(dim=-1, keepdim=True)
    if magnitude is mask and (work.nonnegative or normalizer == "signed"):
        joined = mask.attend(phi_q, phi_k, torch.cat([v, ones], dim=-1))
        return divide(joined[..., :-1], joined[..., -1:], nothing)
    return divide(mask.attend(phi_q, phi_k, v), magnitude.attend(phi_q.abs(), phi_k.abs(), ones), nothing)


def _attend_dense(work: _Linear) -> Tensor:
    mask, phi_q, phi_k, v, normalizer = work[:5]
    weights = mask.dense_weights().to(v.dtype)
    magnitude = mask.magnitude() if normalizer == "absolute" else mask
    sizes = None if magnitude is mask else magnitude.dense_weights().to(v.dtype)
    if work.dropout_p == 0 and (work.nonnegative or normalizer != "absolute"):
        return dense_attention(phi_q, phi_k, v, weights, sizes, normalize=normalizer != "none")
    scores = phi_q @ phi_k.mT
    numerator = _drop(scores * weights, work.dropout_p) @ v
    if normalizer == "none":
        return numerator
    scores = scores if work.nonnegative or normalizer == "signed" else phi_q.abs() @ phi_k.abs().mT
    return divide(numerator, (scores * (weights if sizes is None else sizes)).sum(dim=-1, keepdim=True))


def _attend_pairs(work: _Linear) -> Tensor:
    absolute = work.normalizer == "absolute"
    way = _PairAttention(absolute, absolute and not work.nonnegative, work.normalizer != "none", softmax=False)
    return _over_pairs(work.mask, work.phi_q, work.phi_k, work.v, None, way, work.dropout_p)


def _softmax_pairs(inputs: Tokens, mask: Mask, normalizer: str, dropout_p: float) -> Tensor:
    way = _PairAttention(normalizer == "absolute", absolute=False, normalize=True, softmax=True)
    return _over_pairs(mask, inputs.q, inputs.k, inputs.v, inputs.is_key, way, dropout_p)


class _PairAttention(NamedTuple):
    """What is summed over pairs."""

    magnitudes: bool  # whether the normaliser takes the mask's magnitude
    absolute: bool  # whether it takes absolute features
    normalize: bool
    softmax: bool


def _over_pairs(
    mask: Mask, q: Tensor, k: Tensor, v: Tensor, is_key: Tensor | None, way: _PairAttention, dropout_p: float
) -> Tensor:
    """Attention over the entries of a mask. Its heads are part of its pattern; heads that share one are more inputs."""
    batch, heads = q.shape[:2]
    count = batch * heads // mask.num_heads
    shape = (*q.shape[:3], v.shape[-1])
    if not count:
        return v.new_zeros(shape)
    q, k, v = (x.reshape(count, mask.num_heads * x.shape[2], x.shape[3]) for x in (q, k, v))
    if is_key is not None:
        is_key = is_key[..., 0].expand(batch, heads, -1).reshape(count, -1)
    if dropout_p == 0:
        out = mask.attend_pairs(q, k, v, is_key=is_key, **way._asdict())
    else:
        out = _drop_pairs(mask, q, k, v, is_key, way, dropout_p)
    return out.reshape(shape)


def _drop_pairs(
    mask: Mask, q: Tensor, k: Tensor, v: Tensor, is_key: Tensor | None, way: _PairAttention, dropout_p: float
) -> Tensor:
    """With dropout the weights of all pairs are formed, for one input after the other."""
    pattern, values, magnitudes = mask.entries()
    values, magnitudes = values.to(v.dtype), (magnitudes if way.magnitudes else values).to(v.dtype)
    keeps = [None] * len(q) if is_key is None else list(is_key)
    flags = (way.softmax, way.absolute, way.normalize)
    results = [
        pairs.attend(pattern, values, magnitudes, *one, *flags, drop=lambda x: F.dropout(x, dropout_p))[0]
        for one in zip(q, k, v, keeps, strict=True)
    ]
    return torch.stack(results)


def _softmax_dense(inputs: Tokens, mask: Mask, normalizer: str, dropout_p: float) -> Tensor:
    scores = inputs.q @ inputs.k.mT
    if inputs.is_key is not None:
        scores = scores.masked_fill(~inputs.is_key.mT, -torch.inf)
    values, magnitudes = mask.dense_weights(), mask.magnitude().dense_weights()
    if not magnitudes.shape[-1]:
        return inputs.v.new_zeros(*inputs.q.shape[:-1], inputs.v.shape[-1])
    largest = magnitudes.detach().amax(dim=-1, keepdim=True)
    # A factor per query that brings its largest entry near 1; it cancels in the quotient.
    unit = torch.where(largest > 0, 1.0 / largest, 1.0)
    values, magnitudes = (values * unit).to(scores.dtype), (magnitudes * unit).to(scores.dtype)
    shift = (scores.detach() + magnitudes.detach().log()).amax(dim=-1, keepdim=True)
    powers = (scores - finite(shift)).clamp(max=pairs.MAX_EXPONENT).exp()
    numerator = _drop(powers * values, dropout_p) @ inputs.v
    weights = magnitudes if normalizer == "absolute" else values
    return divide(numerator, (powers * weights).sum(dim=-1, keepdim=True))


def _plain_softmax(inputs: Tokens) -> Tensor:
    """Softmax attention without a mask, by PyTorch, which keeps no weights where all have one width."""
    q, k, v, is_key = inputs
    width = v.shape[-1]
    short = width - q.shape[-1]
    if short > 0:
        q, k = F.pad(q, (0, short)), F.pad(k, (0, short))
    elif short < 0:
        v = F.pad(v, (0, -short))
    if is_key is None:
        return F.scaled_dot_product_attention(q, k, v, scale=1.0)[..., :width]
    # Where all is padding, queries may look at it, as long as nothing comes of it.
    some = is_key.any(dim=-2, keepdim=True)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=(is_key | ~some).mT, scale=1.0)[..., :width]
    return out.masked_fill(~some, 0.0)


def _drop(weights: Tensor, dropout_p: float) -> Tensor:
    return F.dropout(weights, dropout_p) if dropout_p > 0 else weights
