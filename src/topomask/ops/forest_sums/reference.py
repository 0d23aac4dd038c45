"""Sums over forests in two passes, level by level; pure torch.

Nothing is subtracted on the way back: the sum of a place without one of its children is added up from the children
before and after that one, so that factors may be larger than 1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.forest_sums import Sums
from topomask.ops.rooted_forest import RootedForest


class _Halves(NamedTuple):
    """For every place, in the order of the forest, [G, H, N, C]: sums over its subtree, and over everything else."""

    below: Tensor
    others: Tensor


def forest_sums(sums: Sums) -> Tensor:
    """Return sums of x [G, H, N, C] over all nodes of a tree, weighted by the edges between them."""
    forest, logs, coefficients, x, _ = sums
    source = _placed(forest, x)
    out = torch.zeros_like(source)
    for r in range(logs.shape[1]):
        below, others = _halves(forest, logs[:, r], source)
        out += coefficients[:, r, None, None] * (below + others)
    return _restored(forest, out).to(x.dtype)


def forest_sums_backward(sums: Sums, grad: Tensor) -> dict[str, Tensor]:
    """Return the gradients of logarithms, coefficients and x."""
    forest, logs, coefficients, x, _ = sums
    source, slope = _placed(forest, x), _placed(forest, grad)
    grad_logs, grad_coefficients = torch.zeros_like(logs), torch.zeros_like(coefficients)
    grad_x = torch.zeros_like(slope)
    for r in range(logs.shape[1]):
        scale = coefficients[:, r, None, None]
        a, b = _halves(forest, logs[:, r], source), _halves(forest, logs[:, r], slope)
        grad_logs[:, r] = (scale * (a.below * b.others + b.below * a.others)).sum(dim=(0, 3))
        grad_coefficients[:, r] = (slope * (a.below + a.others)).sum(dim=(0, 2, 3))
        grad_x += scale * (b.below + b.others)
    return {"logs": grad_logs, "coefficients": grad_coefficients, "x": _restored(forest, grad_x).to(x.dtype)}


def _placed(forest: RootedForest, x: Tensor) -> Tensor:
    return x.double().index_select(2, forest.nodes)


def _restored(forest: RootedForest, x: Tensor) -> Tensor:
    return torch.empty_like(x).index_copy_(2, forest.nodes.long(), x)


def _halves(forest: RootedForest, logs: Tensor, x: Tensor) -> _Halves:
    """Compute both sums, from leaves to roots and back."""
    factors = logs.exp()[:, :, None]
    below, others = x.clone(), torch.zeros_like(x)
    if not x.numel():
        return _Halves(below, others)
    places = forest.depths.argsort(stable=True)
    levels = places.split(torch.bincount(forest.depths).tolist())[1:]
    for here in reversed(levels):
        below.index_add_(2, forest.above[here], factors[:, here] * below[:, :, here])
    for here in levels:
        above = forest.above[here]
        siblings = _siblings(factors[:, here] * below[:, :, here], above)
        others[:, :, here] = factors[:, here] * (x[:, :, above] + others[:, :, above] + siblings)
    return _Halves(below, others)


def _siblings(values: Tensor, above: Tensor) -> Tensor:
    """Return sums of values [..., n, C] over the siblings of every place, which are next to each other."""
    counts = torch.unique_consecutive(above, return_counts=True)[1]
    return _before(values, counts) + _before(values.flip(-2), counts.flip(0)).flip(-2)


def _before(values: Tensor, counts: Tensor) -> Tensor:
    """Return sums over earlier values of the same segment, with steps that double."""
    place = segments.ranges(torch.zeros_like(counts), counts)[:, None]
    values = torch.where(place >= 1, values.roll(1, -2), 0.0)
    shift, longest = 1, int(counts.max())
    while shift < longest:
        values = values + torch.where(place >= shift, values.roll(shift, -2), 0.0)
        shift *= 2
    return values
