"""Attention over the entries of a sparse mask; pure torch, one item of the batch after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.pair_attention import MAX_EXPONENT, Attention, largest_exponent
from topomask.ops.quotient import without_zeros
from topomask.ops.sparse_product import Pattern, sddmm, spmm


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
    """Attention [R, D] and its denominator [R] for one item, differentiable; see :func:`pair_attention`."""
    terms = _terms(pattern, values, magnitudes, q, k, is_key, softmax, absolute)
    return _quotient(pattern, terms, v, normalize, drop)


class _Terms(NamedTuple):
    """The factors of the sums over the entries of a pattern, all [P]."""

    scores: Tensor  # of the numerator: scores, or powers for softmax attention
    total_scores: Tensor  # of the denominator
    values: Tensor
    magnitudes: Tensor


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
        total_scores = sddmm(pattern, q.abs(), k.abs()) if absolute else scores
        return _Terms(scores, total_scores, values, magnitudes)
    if is_key is not None:
        scores = scores.masked_fill(~is_key[pattern.columns], -torch.inf)
    # Magnitudes may be the values, which may be negative.
    sizes = magnitudes.detach().abs()

    def row_max(x: Tensor) -> Tensor:
        return x.new_full((num_rows,), -torch.inf).scatter_reduce(0, row, x, "amax")[row]

    powers = weighted_powers(scores, sizes, row_max)
    return _Terms(powers, powers, values, magnitudes)


def weighted_powers(scores: Tensor, sizes: Tensor, row_max: Callable[[Tensor], Tensor]) -> Tensor:
    """Return exp(score - shift), where the shift of a row makes its largest power times magnitude 1.

    Args:
        scores: Scores; minus infinity for padding.
        sizes: Absolute magnitudes, in a shape that broadcasts with scores.
        row_max: Returns the largest number of every row, in a shape that broadcasts with scores.
    """
    limit = largest_exponent(scores.dtype)
    logs = sizes.log()
    heights = scores.detach() + logs.clamp(min=-0.5 * limit).masked_fill(sizes == 0, -torch.inf)
    shift = row_max(heights)
    exponents = scores - torch.where(shift.isfinite(), shift, 0.0)
    # Padding is ignored, whatever its magnitude.
    counted = torch.where(scores.detach() == -torch.inf, -torch.inf, logs)
    bounds = (MAX_EXPONENT - row_max(counted)).clamp(max=0.5 * limit)
    return torch.where(sizes == 0, torch.minimum(exponents, bounds), exponents).exp()


def _quotient(
    pattern: Pattern,
    terms: _Terms,
    v: Tensor,
    normalize: bool,
    drop: Callable[[Tensor], Tensor] = lambda weights: weights,
) -> tuple[Tensor, Tensor]:
    """Divide the sum of values by the sum of magnitudes; 0 with zero gradient where the latter is 0."""
    numerator = spmm(pattern, drop(terms.scores * terms.values), v)
    row, total_terms = segments.index(pattern.row_ptr), terms.total_scores * terms.magnitudes
    denominator = total_terms.new_zeros(len(pattern.row_ptr) - 1).index_add(0, row, total_terms)
    if not normalize:
        return numerator, denominator
    return numerator / without_zeros(denominator)[:, None], denominator


class _Item(NamedTuple):
    """One item of a batch; its gradients of values and magnitudes are added to those of ``head``."""

    number: int
    head: int
    terms: _Terms
    q: Tensor  # [R, M]
    k: Tensor  # [N, M]
    v: Tensor  # [N, D]


def _items(attention: Attention) -> Iterator[_Item]:
    pattern, values, magnitudes, q, k, v, is_key, softmax, absolute, _ = attention
    values = _by_head(values)
    magnitudes = values if magnitudes is None else _by_head(magnitudes)
    for g in range(len(q)):
        head, keep = g % len(values), None if is_key is None else is_key[g]
        terms = _terms(pattern, values[head], magnitudes[head], q[g], k[g], keep, softmax, absolute)
        yield _Item(g, head, terms, q[g], k[g], v[g])


def _by_head(values: Tensor) -> Tensor:
    return values if values.ndim == 2 else values[None]


def pair_attention(attention: Attention) -> tuple[Tensor, Tensor]:
    """Attention [G, R, D] and its denominator [G, R]."""
    q, v = attention.q, attention.v
    out, denominator = q.new_empty(*q.shape[:2], v.shape[2]), q.new_empty(q.shape[:2])
    for item in _items(attention):
        found = _quotient(attention.pattern, item.terms, item.v, attention.normalize)
        out[item.number], denominator[item.number] = found
    return out, denominator


def pair_attention_backward(
    attention: Attention, _: tuple[Tensor, ...], grad: Tensor, wanted: Collection[str]
) -> dict[str, Tensor]:
    """Return the gradients of values, magnitudes, q, k and v."""
    pattern, softmax, absolute, normalize = attention.pattern, *attention[-3:]
    row = segments.index(pattern.row_ptr)
    names = ["values", "q", "k", "v"] + ["magnitudes"] * (attention.magnitudes is not None)
    grads = {name: torch.zeros_like(getattr(attention, name)) for name in names}
    grad_values, grad_magnitudes = _by_head(grads["values"]), _by_head(grads.get("magnitudes", grads["values"]))
    for g, head, terms, q, k, v in _items(attention):
        out, denominator = _quotient(pattern, terms, v, normalize)
        by_numerator, by_total = grad[g], torch.zeros_like(denominator)
        if normalize:
            by_numerator = by_numerator / without_zeros(denominator)[:, None]
            by_total = -(by_numerator * out).sum(dim=1)
        by_value, by_total = sddmm(pattern, by_numerator, v), by_total[row]
        grad_values[head] += terms.scores * by_value
        grad_magnitudes[head] += terms.total_scores * by_total
        by_score, by_total_score = terms.values * by_value, terms.magnitudes * by_total
        if absolute:
            grads["q"][g] = q.sign() * spmm(pattern, by_total_score, k.abs())
            grads["k"][g] = k.sign() * spmm(pattern, by_total_score, q.abs(), transpose=True)
        else:
            by_score = by_score + by_total_score
            by_score = by_score * terms.scores if softmax else by_score
        grads["q"][g] += spmm(pattern, by_score, k)
        grads["k"][g] += spmm(pattern, by_score, q, transpose=True)
        grads["v"][g] = spmm(pattern, terms.scores * terms.values, by_numerator, transpose=True)
    return grads
