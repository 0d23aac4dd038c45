r"""Masked attention as a plain formula in double precision, and how far rounding may take an answer from it.

.. math:: y_i = \sum_j M_{ij} s_{ij} v_j \Big/ \sum_j |M|_{ij} |s|_{ij}

Where scores are positive, as in softmax attention and with exponential features, they are taken as logarithms and
shifted by the true maximum of log-score plus log-weight of every query, so that nothing overflows or vanishes.

Shapes: q [B, H, N_q, D]; k, v [B, H, N_k, ...]; M [H or 1, N_q, N_k]; pairs [B, H, N_q, N_k].
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

# Rounding errors count in units of the last place, times this.
UNITS = 256.0
# A quotient whose relative error may be larger than this is not compared.
WORST = 0.05
# Powers above this, relative to the largest that counts, have no exact slope in the mask.
HIGHEST = 1e15


class Setting(NamedTuple):
    """Which attention."""

    softmax: bool
    feature_map: str
    normalizer: str
    scale: float  # of the scores of softmax attention


class Precision(NamedTuple):
    """Of the arithmetic, and of the results."""

    eps: float
    tiny: float
    largest: float

    @classmethod
    def of(cls, *dtypes: torch.dtype) -> Precision:
        """The coarsest of some, each float32 at least."""
        kinds = [torch.finfo(torch.promote_types(dtype, torch.float32)) for dtype in dtypes]
        return cls(max(x.eps for x in kinds), max(x.tiny for x in kinds), min(x.max for x in kinds))


class Scores(NamedTuple):
    """Scores of pairs, per query up to a factor that cancels."""

    signed: Tensor
    positive: Tensor
    # Relative error in units of the last place, and absolute error that underflow makes, in units of the smallest.
    wobble: Tensor
    floor: Tensor | float


def features(name: str, x: Tensor) -> Tensor:
    """A feature map that is not given by exponents."""
    if name == "relu":
        return torch.where(x > 0, x, 0.0)
    if name == "cubic":
        return x**3 / 4 + x
    assert name == "identity"
    return x


def exponents(name: str, x: Tensor, projection: Tensor | None) -> Tensor:
    """Logarithms of positive features."""
    if name == "exp":
        return x
    if name == "elu":
        return torch.where(x > 0, torch.log1p(x.clamp(min=0.0)), x)
    assert projection is not None
    count, dim = projection.shape
    small = x / dim**0.25
    return small @ projection.mT - small.square().sum(dim=-1, keepdim=True) / 2 - math.log(count) / 2


def is_positive(setting: Setting) -> bool:
    """Whether scores are exponentials."""
    return setting.softmax or setting.feature_map in ("exp", "elu", "softmax")


def _shift(log_scores: Tensor, magnitude: Tensor, is_key: Tensor) -> Tensor:
    found = torch.where(is_key, log_scores.detach() + magnitude.detach().log(), -math.inf)
    if not found.shape[-1]:
        return found.new_zeros(*found.shape[:-1], 1)
    shift = found.amax(dim=-1, keepdim=True)
    return torch.where(shift.isfinite(), shift, 0.0)


def score(
    setting: Setting, q: Tensor, k: Tensor, magnitude: Tensor, is_key: Tensor, groups: Tensor, projection: Tensor | None
) -> Scores:
    """The scores of all pairs; keys that do not count have score 0."""
    if not is_positive(setting):
        a, b = features(setting.feature_map, q), features(setting.feature_map, k)
        signed, positive = (torch.where(is_key, x @ y.mT, 0.0) for x, y in ((a, b), (a.abs(), b.abs())))
        floor = 1.0
        if setting.normalizer != "none":
            floor = _largest(a) * _largest_of_graph(_largest(b).mT, is_key, groups).clamp(min=0.0)
        return Scores(signed, positive, torch.ones_like(positive), floor * a.shape[-1])
    if setting.softmax:
        logs = setting.scale * (q @ k.mT)
        wobble, floor = 1.0 + abs(setting.scale) * (q.abs() @ k.abs().mT).detach(), 0.0
    else:
        a, b = (exponents(setting.feature_map, x, projection) for x in (q, k))
        logs = (a[..., :, None, :] + b[..., None, :, :]).logsumexp(dim=-1)
        wobble = 1.0 + _size(a, q, projection)[..., None] + _size(b, k, projection)[..., None, :]
        tops = _top(a)[..., None] + _largest_of_graph(_top(b)[..., None, :], is_key, groups)
        floor = tops
    shift = _shift(logs, magnitude, is_key) if setting.normalizer != "none" else 0.0
    powers = torch.where(is_key, (logs - shift).clamp(max=600.0).exp(), 0.0)
    if not setting.softmax:
        floor = torch.where(is_key, floor - shift, 0.0).exp() if setting.normalizer != "none" else 1.0
        floor = floor * a.shape[-1]
    return Scores(powers, powers, wobble.detach(), floor)


def _largest(x: Tensor) -> Tensor:
    return x.detach().abs().amax(dim=-1, keepdim=True) if x.shape[-1] else x.new_zeros(*x.shape[:-1], 1)


def _top(x: Tensor) -> Tensor:
    return x.detach().amax(dim=-1) if x.shape[-1] else x.new_zeros(x.shape[:-1])


def _size(exponent: Tensor, x: Tensor, projection: Tensor | None) -> Tensor:
    """The numbers that exponents are computed of."""
    found = _largest(exponent)[..., 0]
    return found if projection is None else found + (1.0 + x.detach().square().sum(dim=-1)) * 4.0


def _largest_of_graph(x: Tensor, is_key: Tensor, groups: Tensor) -> Tensor:
    """The largest number among the keys of a graph, for every key: [B, H, 1, N_k]."""
    x = torch.where(is_key, x, -math.inf)
    found = x.clone()
    for group in groups.unique():
        inside = groups == group
        found[..., inside] = x[..., inside].amax(dim=-1, keepdim=True)
    return found


class Answer(NamedTuple):
    """What attention is, and bounds on the errors of its value and of its gradient, in units of the last place."""

    out: Tensor
    bound: Tensor
    compared: Tensor  # which queries can be told apart from rounding errors, [B, H, N_q]
    scores: Scores
    rough: Tensor  # of the weights of pairs
    factor: Tensor  # one over the normaliser, more where its own error counts, [B, H, N_q, 1]


def attend(
    setting: Setting,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: tuple[Tensor, Tensor, Tensor],
    is_key: Tensor,
    groups: Tensor,
    precision: Precision,
    projection: Tensor | None = None,
) -> Answer:
    """The formula.

    Args:
        setting: Which attention.
        q: Queries.
        k: Keys.
        v: Values.
        mask: M, its magnitude, and a bound on its rounding errors.
        is_key: Which keys count, [B, 1, 1, N_k].
        groups: Graph of every key, [N_k].
        precision: Of what is compared.
        projection: Of the random features of the softmax kernel.
    """
    matrix, magnitude, error = mask
    scores = score(setting, q, k, magnitude, is_key, groups, projection)
    weights = matrix * scores.signed
    rough = error * scores.positive.detach() * scores.wobble
    if setting.softmax:
        # Powers that far below the largest vanish; the largest may be as small as 2^-30 before float64 is taken.
        vanishing = 2.0**30 * precision.tiny / precision.eps
        rough = rough + torch.where(is_key & (magnitude.detach() > 0), vanishing, 0.0)
    else:
        rough = rough + torch.where(is_key, (error + 1.0) * precision.tiny * scores.floor, 0.0)
    numerator = weights @ v
    spread = rough @ v.detach().abs()
    if setting.normalizer == "none":
        compared = (spread < precision.largest * 1e-6).all(dim=-1)
        return Answer(numerator, spread, compared, scores, rough, torch.ones_like(rough[..., :1].sum(-1, True)))
    absolute = setting.normalizer == "absolute"
    total = (magnitude * scores.positive if absolute else weights).sum(dim=-1, keepdim=True)
    alive = total != 0
    total = torch.where(alive, total, 1.0)
    out = torch.where(alive, numerator / total, 0.0)
    size = total.detach().abs()
    share = rough.sum(dim=-1, keepdim=True) / size
    bound = spread / size + share * out.detach().abs()
    compared = (~alive & (rough.sum(dim=-1, keepdim=True) == 0)) | (
        alive & (share * precision.eps * UNITS < WORST) & share.isfinite()
    )
    return Answer(out, bound, compared[..., 0], scores, rough, (1.0 + share) / size)


class Bounds(NamedTuple):
    """Bounds on the errors of gradients, in units of the last place; q, k and v as the formula takes them."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor  # [H, N_q, N_k]


def bound_gradients(
    setting: Setting,
    answer: Answer,
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    error: Tensor,
    projection: Tensor | None,
    precision: Precision,
) -> Bounds:
    """How large the terms are that gradients are sums of, whatever cancels."""
    q, k, v, grad, out = q.detach(), k.detach(), v.detach(), grad.abs(), answer.out.detach().abs() + answer.bound
    pairs = grad @ v.abs().mT
    if setting.normalizer != "none":
        pairs = pairs + (grad * out).sum(dim=-1, keepdim=True)
    wide, scores = answer.rough * answer.factor * pairs, answer.scores
    of_mask = scores.positive.detach() * scores.wobble * pairs * answer.factor
    # A score so far above those that count belongs to an entry of 0: its slope is cut, so that sums stay finite.
    of_mask = torch.where(scores.positive.detach() > HIGHEST, torch.inf, of_mask)
    # Queries that are left out have no gradient, whatever they are divided by.
    of_mask = torch.where(pairs == 0, 0.0, of_mask)
    of_v = (answer.rough * answer.factor).mT @ grad
    if setting.softmax:
        scale = abs(setting.scale)
        # Queries are multiplied by the scale: below the smallest normal number a product keeps few digits.
        scaled = scale * q.abs() + precision.tiny * (q != 0)
        of_q, of_k = scale * (wide @ k.abs()), wide.mT @ scaled
    elif is_positive(setting):
        a, b = (exponents(setting.feature_map, x, projection) for x in (q, k))
        joint = a[..., :, None, :] + b[..., None, :, :]
        joint = (joint - joint.logsumexp(dim=-1, keepdim=True)).exp()
        of_q, of_k = torch.einsum("bhij,bhija->bhia", wide, joint), torch.einsum("bhij,bhija->bhja", wide, joint)
        of_q, of_k = (_through(setting, x, bound, projection) for x, bound in ((q, of_q), (k, of_k)))
    else:
        share = error * pairs * answer.factor * scores.wobble
        # A slope that does not fit, times a feature that is 0, is not a number.
        share = torch.where(share < 1e-4 * precision.largest, share, torch.inf)
        a, b = (features(setting.feature_map, x).abs() for x in (q, k))
        of_q, of_k = (torch.where((x @ y).isnan(), torch.inf, x @ y) for x, y in ((share, b), (share.mT, a)))
        of_q, of_k = (_through(setting, x, bound, projection) for x, bound in ((q, of_q), (k, of_k)))
    return Bounds(of_q, of_k, of_v, of_mask.sum(dim=0))


def _through(setting: Setting, x: Tensor, bound: Tensor, projection: Tensor | None) -> Tensor:
    """Times the absolute slope of a feature map."""
    if setting.feature_map == "softmax":
        assert projection is not None
        dim = projection.shape[1]
        return bound @ projection.abs() / dim**0.25 + x.abs() * bound.sum(dim=-1, keepdim=True) / dim**0.5
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        found = exponents(setting.feature_map, x, None) if is_positive(setting) else features(setting.feature_map, x)
        (slope,) = torch.autograd.grad(found.sum(), x)
    return torch.where(bound.isinf(), bound, bound * slope.abs())
