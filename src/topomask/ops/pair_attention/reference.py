"""Attention over the entries of a sparse mask; pure torch, one input of the batch after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.sparse_product import Pattern, sddmm, spmm

# Exponents whose power is just finite in float32, and what stands for minus infinity where kernels may not meet it.
LARGEST_EXPONENT, LOWEST = 85.0, -1e30
# Largest exponent of a score above the row's weighted maximum: where an entry is 0 but may be learnt, its score still
# counts in the gradient, and sums of such powers must stay finite in float32.
MAX_EXPONENT = 60.0


def attend(
    pattern: Pattern,
    values: Tensor,
    magnitudes: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_key: Tensor | None,
    softmax: bool,
    absolute: bool,
    normalize: bool,
    drop: Callable[[Tensor], Tensor] = lambda weights: weights,
) -> tuple[Tensor, Tensor]:
    """Attention [R, D] and its denominator [R] for one input, differentiable; see :func:`pair_attention`."""
    terms = _terms(pattern, values, magnitudes, q, k, is_key, softmax, absolute)
    return _quotient(pattern, terms, v, normalize, drop)


class _Terms(NamedTuple):
    """What is summed over the entries of a pattern, all [P]."""

    scores: Tensor  # of the numerator: scores, or powers for softmax attention
    sizes: Tensor  # of the denominator
    values: Tensor
    magnitudes: Tensor
    unit: Tensor  # factor by which values and magnitudes were scaled


def _terms(
    pattern: Pattern,
    values: Tensor,
    magnitudes: Tensor,
    q: Tensor,
    k: Tensor,
    is_key: Tensor | None,
    softmax: bool,
    absolute: bool,
) -> _Terms:
    row, num_rows = segments.index(pattern.row_ptr), len(pattern.row_ptr) - 1
    scores = sddmm(pattern, q, k)
    if not softmax:
        sizes = sddmm(pattern, q.abs(), k.abs()) if absolute else scores
        return _Terms(scores, sizes, values, magnitudes, torch.ones_like(values))
    if is_key is not None:
        scores = scores.masked_fill(~is_key[pattern.columns], -torch.inf)
    # Magnitudes may be values, which may be negative.
    unit = _row_unit(values.new_zeros(num_rows).scatter_reduce(0, row, magnitudes.detach().abs(), "amax"))[row]
    values, magnitudes = values * unit, magnitudes * unit
    heights = scores.detach() + magnitudes.detach().abs().log()
    shift = heights.new_full((num_rows,), -torch.inf).scatter_reduce(0, row, heights, "amax")
    shift = torch.where(shift.isfinite(), shift, 0.0)
    powers = (scores - shift[row]).clamp(max=MAX_EXPONENT).exp()
    return _Terms(powers, powers, values, magnitudes, unit)


def _quotient(
    pattern: Pattern,
    terms: _Terms,
    v: Tensor,
    normalize: bool,
    drop: Callable[[Tensor], Tensor] = lambda weights: weights,
) -> tuple[Tensor, Tensor]:
    """The sum of values over the sum of sizes; 0 with zero gradient where that is 0."""
    numerator = spmm(pattern, drop(terms.scores * terms.values), v)
    row = segments.index(pattern.row_ptr)
    denominator = terms.sizes.new_zeros(len(pattern.row_ptr) - 1).index_add(0, row, terms.sizes * terms.magnitudes)
    if not normalize:
        return numerator, denominator
    nothing = (denominator == 0)[:, None]
    return (numerator / denominator[:, None].masked_fill(nothing, 1.0)).masked_fill(nothing, 0.0), denominator


def _row_unit(largest: Tensor) -> Tensor:
    """A factor per query that brings its largest entry near 1; it cancels in the quotient."""
    return torch.where(largest > 0, 1.0 / largest, 1.0)


def pair_attention(
    pattern: Pattern,
    values: Tensor,
    magnitudes: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_key: Tensor,
    softmax: bool,
    absolute: bool,
    normalize: bool,
) -> tuple[Tensor, Tensor]:
    """Attention [B, R, D] and its denominator [B, R]; ``magnitudes`` and ``is_key`` may be empty."""
    sizes = magnitudes if len(magnitudes) else values
    out, denominator = q.new_empty(*q.shape[:2], v.shape[2]), q.new_empty(q.shape[:2])
    for b in range(len(q)):
        keep = is_key[b] if len(is_key) else None
        out[b], denominator[b] = attend(pattern, values, sizes, q[b], k[b], v[b], keep, softmax, absolute, normalize)
    return out, denominator


def pair_attention_backward(
    grad: Tensor,
    pattern: Pattern,
    values: Tensor,
    magnitudes: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_key: Tensor,
    softmax: bool,
    absolute: bool,
    normalize: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients in values, magnitudes, q, k and v."""
    own = len(magnitudes) > 0
    row = segments.index(pattern.row_ptr)
    grad_values, grad_magnitudes = torch.zeros_like(values), torch.zeros_like(magnitudes)
    grad_q, grad_k, grad_v = (torch.zeros_like(x) for x in (q, k, v))
    for b in range(len(q)):
        keep = is_key[b] if len(is_key) else None
        terms = _terms(pattern, values, magnitudes if own else values, q[b], k[b], keep, softmax, absolute)
        out, denominator = _quotient(pattern, terms, v[b], normalize)
        pulled, push = grad[b], torch.zeros_like(denominator)
        if normalize:
            inverse = torch.where(denominator == 0, 0.0, 1.0 / denominator)
            pulled = pulled * inverse[:, None]
            push = -(pulled * out).sum(dim=1)
        pull, push = sddmm(pattern, pulled, v[b]), push[row]
        grad_values += terms.scores * pull * terms.unit
        (grad_magnitudes if own else grad_values).add_(terms.sizes * push * terms.unit)
        through, bare = terms.values * pull, terms.magnitudes * push
        if absolute:
            grad_q[b] = q[b].sign() * spmm(pattern, bare, k[b].abs())
            grad_k[b] = k[b].sign() * spmm(pattern, bare, q[b].abs(), transpose=True)
        else:
            through = (through + bare) * terms.scores if softmax else through + bare
        grad_q[b] += spmm(pattern, through, k[b])
        grad_k[b] += spmm(pattern, through, q[b], transpose=True)
        grad_v[b] = spmm(pattern, terms.scores * terms.values, pulled, transpose=True)
    return grad_values, grad_magnitudes, grad_q, grad_k, grad_v
