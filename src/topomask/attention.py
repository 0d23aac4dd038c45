"""Attention modulated by a mask."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from topomask import feature_maps
from topomask.graph_input import check_nodes
from topomask.masks import Mask
from topomask.masks.base import Normalizer
from topomask.ops.pair_attention import reference as pairs
from topomask.ops.row_extremes import any_extreme
from topomask.planning import Plan, Strategy, plan_attention

FeatureMap = str | Callable[[Tensor], Tensor]

# Features between its inverse and this can be multiplied and added up in float32 without a scale.
_NEAR_ONE = 2.0**24


class _Inputs(NamedTuple):
    """Checked inputs in at least float32, with one head axis: [B, H, N, D]."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask
    is_key: Tensor | None  # [B, 1, N_k, 1], False where padded


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
    inputs = _prepare(q, k, v, mask, key_padding_mask, dropout_p, query_nodes, key_nodes)
    normalizer = mask.default_normalizer if normalizer is None else normalizer
    if normalizer not in get_args(Normalizer):
        raise ValueError(f"`normalizer` must be one of {get_args(Normalizer)}, but is {normalizer!r}.")
    with torch.autocast(inputs.q.device.type, enabled=False):
        phi_q, phi_k = _features(phi, inputs, q.dtype, rescale=normalizer != "none")
        plan = _plan(inputs, phi_q.shape[-1], strategy, "linear", dropout_p)
        attend = {"pairs": _attend_pairs, "features": _attend_features, "dense": _attend_dense}[plan.strategy]
        nonnegative = feature_maps.is_nonnegative(phi)
        work = _Linear(inputs.mask, phi_q, phi_k, inputs.v, normalizer, nonnegative, dropout_p)
        return _restore(attend(work), q)


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
        strategy: ``"pairs"`` or ``"dense"``; ``"auto"`` takes the cheapest.
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
    inputs = _prepare(q, k, v, mask, key_padding_mask, dropout_p, query_nodes, key_nodes)
    normalizer = mask.default_normalizer if normalizer is None else normalizer
    if normalizer not in ("absolute", "signed"):
        raise ValueError(f"`normalizer` must be 'absolute' or 'signed' for softmax attention, but is {normalizer!r}.")
    with torch.autocast(inputs.q.device.type, enabled=False):
        scaled = inputs.q * (1.0 / math.sqrt(q.shape[-1]) if scale is None else scale)
        plan = _plan(inputs, q.shape[-1], strategy, "softmax", dropout_p)
        attend = _softmax_pairs if plan.strategy == "pairs" else _softmax_dense
        return _restore(attend(inputs._replace(q=scaled), normalizer, dropout_p), q)


def _prepare(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    key_padding_mask: Tensor | None,
    dropout_p: float,
    query_nodes: Any,
    key_nodes: Any,
) -> _Inputs:
    if not isinstance(mask, Mask):
        raise ValueError(f"`mask` must be a topomask.Mask, but is a {type(mask).__name__}. Wrap a matrix in DenseMask.")
    if query_nodes is not None or key_nodes is not None:
        queries = None if query_nodes is None else check_nodes(query_nodes, mask.num_queries, "query_nodes")
        keys = None if key_nodes is None else check_nodes(key_nodes, mask.num_keys, "key_nodes")
        mask = mask.select(queries, keys)
    _check_shapes(q, k, v, mask)
    if not 0 <= dropout_p < 1:
        raise ValueError(f"`dropout_p` must lie in [0, 1), but is {dropout_p}.")
    dtype = torch.promote_types(q.dtype, torch.float32)
    groups = q.shape[-3] // k.shape[-3]
    batch = math.prod(q.shape[:-3])
    q, k, v = (x.to(dtype).reshape(batch, *x.shape[-3:]) for x in (q, k, v))
    k, v = (x.repeat_interleave(groups, dim=1) if groups > 1 else x for x in (k, v))
    if key_padding_mask is None:
        return _Inputs(q, k, v, mask, None)
    key_padding_mask = torch.as_tensor(key_padding_mask, device=k.device)
    if key_padding_mask.dtype != torch.bool or key_padding_mask.shape[-1:] != k.shape[-2:-1]:
        raise ValueError(
            f"`key_padding_mask` must be boolean with shape [..., N_k={k.shape[-2]}], True where a key is padding, "
            f"but has shape {tuple(key_padding_mask.shape)} and dtype {key_padding_mask.dtype}."
        )
    rows = math.prod(key_padding_mask.shape[:-1])
    if rows not in (1, batch):
        raise ValueError(f"`key_padding_mask` must have one row per input, {batch}, but has {rows}.")
    padded = key_padding_mask.reshape(rows, 1, k.shape[-2], 1)
    # Whatever stands in padding, NaN included, must touch neither results nor gradients.
    return _Inputs(q, k.masked_fill(padded, 0.0), v.masked_fill(padded, 0.0), mask, ~padded)


def _check_shapes(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim < 3 or not x.is_floating_point():
            raise ValueError(
                f"`{name}` must have shape [..., H, N, D] and a floating dtype, but has shape {tuple(x.shape)} "
                f"and dtype {x.dtype}."
            )
    if q.shape[:-3] != k.shape[:-3] or q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"`q` and `k` must agree in batch and width, but have shapes {tuple(q.shape)} and {tuple(k.shape)}."
        )
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"`k` and `v` must agree but in width, but have shapes {tuple(k.shape)} and {tuple(v.shape)}.")
    if q.shape[-3] % k.shape[-3]:
        raise ValueError(
            f"`q` has {q.shape[-3]} heads, which is no multiple of the {k.shape[-3]} heads of `k` and `v`."
        )
    if mask.num_heads not in (1, q.shape[-3]):
        raise ValueError(f"`mask` must have one head or the {q.shape[-3]} of `q`, but has {mask.num_heads}.")
    if (q.shape[-2], k.shape[-2]) != (mask.num_queries, mask.num_keys):
        raise ValueError(
            f"`mask` is for {mask.num_queries} queries and {mask.num_keys} keys, but `q` has {q.shape[-2]} and `k` has "
            f"{k.shape[-2]}. Say with query_nodes and key_nodes which nodes they are, or use mask.on(graph)."
        )


def _plan(inputs: _Inputs, num_features: int, strategy: Strategy, kernel: Any, dropout_p: float) -> Plan:
    batch, heads = inputs.q.shape[:2]
    width = inputs.v.shape[-1]
    return plan_attention(
        inputs.mask, num_features, width, batch, heads, strategy=strategy, kernel=kernel, dropout=dropout_p > 0
    )


def _features(
    phi: Callable[[Tensor], Tensor], inputs: _Inputs, dtype: torch.dtype, rescale: bool
) -> tuple[Tensor, Tensor]:
    """Features of queries and keys, scaled so that no product of two can overflow or vanish.

    A factor per query, or per graph and head for keys, cancels in the quotient of attention.
    """
    groups = inputs.mask.key_groups
    if isinstance(phi, feature_maps.ExponentialMap):
        exponents_q, exponents_k = phi.exponents(inputs.q), phi.exponents(inputs.k)
        if inputs.is_key is not None:
            exponents_k = exponents_k.masked_fill(~inputs.is_key, -torch.inf)
        if rescale:
            exponents_q = exponents_q - _finite(exponents_q.detach().amax(dim=-1, keepdim=True))
            exponents_k = exponents_k - _finite(_amax_per_graph(exponents_k.detach(), groups))
        return exponents_q.exp(), exponents_k.exp()
    phi_q, phi_k = (_apply(phi, x, dtype) for x in (inputs.q, inputs.k))
    if inputs.is_key is not None:
        phi_k = phi_k.masked_fill(~inputs.is_key, 0.0)
    # Looking first saves work on the CPU; elsewhere it would wait for the device.
    blind = torch.compiler.is_compiling() or phi_q.device.type != "cpu"
    if rescale and (blind or any_extreme(phi_q, _NEAR_ONE) or any_extreme(phi_k, _NEAR_ONE)):
        phi_q = phi_q * _inverse_power_of_two(phi_q.detach().abs().amax(dim=-1, keepdim=True))
        phi_k = phi_k * _inverse_power_of_two(_amax_per_graph(phi_k.detach().abs(), groups))
    return phi_q, phi_k


def _apply(phi: Callable[[Tensor], Tensor], x: Tensor, dtype: torch.dtype) -> Tensor:
    """Features in the precision of x. A user's own function is given the precision that the user gave."""
    out = phi(x if feature_maps.is_named(phi) else x.to(dtype))
    if out.shape[:-1] != x.shape[:-1]:
        raise ValueError(
            f"`feature_map` must map [..., D] to [..., M], but mapped {tuple(x.shape)} to {tuple(out.shape)}."
        )
    return out.to(x.dtype)


def _amax_per_graph(x: Tensor, groups: Tensor | None) -> Tensor:
    """The largest number per graph and head, [B, H, N, 1] (or [B, H, 1, 1] for one graph)."""
    if not x.shape[-2]:
        return x.new_zeros(*x.shape[:-1], 1)
    largest = x.amax(dim=-1, keepdim=True)
    if groups is None:
        return largest.amax(dim=-2, keepdim=True)
    places = groups.to(x.device)[:, None].expand_as(largest)
    # The number of graphs, without asking the tensor: there are at most as many as nodes.
    per_graph = torch.full_like(largest, -torch.inf).scatter_reduce(-2, places, largest, "amax")
    return per_graph.gather(-2, places)


def _finite(shift: Tensor) -> Tensor:
    return torch.where(shift.isfinite(), shift, 0.0)


def _inverse_power_of_two(largest: Tensor) -> Tensor:
    """A power of two that brings ``largest`` near 1, so that scaling rounds nothing."""
    exponent = torch.frexp(largest).exponent.clamp(-126, 126)
    return torch.ldexp(torch.ones_like(largest), -exponent)


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
        return _divide(joined[..., :-1], joined[..., -1:], nothing)
    return _divide(mask.attend(phi_q, phi_k, v), magnitude.attend(phi_q.abs(), phi_k.abs(), ones), nothing)


def _attend_dense(work: _Linear) -> Tensor:
    mask, phi_q, phi_k, v, normalizer = work[:5]
    scores = phi_q @ phi_k.mT
    weights = scores * mask.dense_weights().to(scores.dtype)
    numerator = _drop(weights, work.dropout_p) @ v
    if normalizer == "none":
        return numerator
    if normalizer == "absolute":
        magnitude = mask.magnitude()
        if magnitude is not mask or not work.nonnegative:
            scores = scores if work.nonnegative else phi_q.abs() @ phi_k.abs().mT
            weights = scores * magnitude.dense_weights().to(scores.dtype)
    return _divide(numerator, weights.sum(dim=-1, keepdim=True))


def _attend_pairs(work: _Linear) -> Tensor:
    absolute = work.normalizer == "absolute"
    way = _PairAttention(absolute, absolute and not work.nonnegative, work.normalizer != "none", softmax=False)
    return _over_pairs(work.mask, work.phi_q, work.phi_k, work.v, None, way, work.dropout_p)


def _softmax_pairs(inputs: _Inputs, normalizer: str, dropout_p: float) -> Tensor:
    way = _PairAttention(normalizer == "absolute", absolute=False, normalize=True, softmax=True)
    return _over_pairs(inputs.mask, inputs.q, inputs.k, inputs.v, inputs.is_key, way, dropout_p)


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


def _softmax_dense(inputs: _Inputs, normalizer: str, dropout_p: float) -> Tensor:
    scores = inputs.q @ inputs.k.mT
    if inputs.is_key is not None:
        scores = scores.masked_fill(~inputs.is_key.mT, -torch.inf)
    values, magnitudes = inputs.mask.dense_weights(), inputs.mask.magnitude().dense_weights()
    if not magnitudes.shape[-1]:
        return inputs.v.new_zeros(*inputs.q.shape[:-1], inputs.v.shape[-1])
    largest = magnitudes.detach().amax(dim=-1, keepdim=True)
    # A factor per query that brings its largest entry near 1; it cancels in the quotient.
    unit = torch.where(largest > 0, 1.0 / largest, 1.0)
    values, magnitudes = (values * unit).to(scores.dtype), (magnitudes * unit).to(scores.dtype)
    shift = (scores.detach() + magnitudes.detach().log()).amax(dim=-1, keepdim=True)
    powers = (scores - _finite(shift)).clamp(max=pairs.MAX_EXPONENT).exp()
    numerator = _drop(powers * values, dropout_p) @ inputs.v
    weights = magnitudes if normalizer == "absolute" else values
    return _divide(numerator, (powers * weights).sum(dim=-1, keepdim=True))


def _drop(weights: Tensor, dropout_p: float) -> Tensor:
    return F.dropout(weights, dropout_p) if dropout_p > 0 else weights


def _divide(numerator: Tensor, denominator: Tensor, noise: Tensor | float = 0.0) -> Tensor:
    """The quotient; 0 with zero gradient where the denominator is 0, or cannot be told from it."""
    nothing = denominator.abs() <= noise
    return (numerator / denominator.masked_fill(nothing, 1.0)).masked_fill(nothing, 0.0)


def _restore(out: Tensor, q: Tensor) -> Tensor:
    return out.reshape(*q.shape[:-1], out.shape[-1]).to(q.dtype)
