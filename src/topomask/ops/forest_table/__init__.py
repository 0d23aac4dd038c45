r"""Sums over the nodes of every tree, weighted by any function of distance: :math:`y_i = \sum_j f(d_{ij})\, x_j`."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from topomask.ops.backend import implementation
from topomask.ops.forest_table.decomposition import Decomposition, decompose
from topomask.ops.registration import Op

__all__ = ["Decomposition", "count_transformed_levels", "decompose", "forest_table"]


class _Sums(NamedTuple):
    cuts: Decomposition
    f: Tensor  # [H, D]
    x: Tensor  # [G, H, N, C]


class _Slope(NamedTuple):
    sums: _Sums
    grad: Tensor  # [G, H, N, C]


def _forward(sums: _Sums) -> Tensor:
    return implementation(__name__, sums.x).forest_table(*sums)


def _slope(arguments: _Slope) -> Tensor:
    sums, grad = arguments
    return implementation(__name__, sums.x).forest_table_backward(*sums, grad)


def _backward(sums: _Sums, _: tuple[Tensor, ...], grad: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
    grads = {}
    if "f" in wanted:
        grads["f"] = _slope_op(_Slope(sums, grad))
    if "x" in wanted:
        # The sums are symmetric.
        grads["x"] = _forest_table(sums._replace(x=grad))
    return grads


_slope_op = Op("forest_table_slope", _Slope, _slope, lambda arguments: torch.empty_like(arguments.sums.f))
_forest_table = Op(
    "forest_table",
    _Sums,
    _forward,
    lambda sums: sums.x.new_empty(sums.x.shape),
    gradients=("f", "x"),
    backward=_backward,
)


def forest_table(cuts: Decomposition, f: Tensor, x: Tensor) -> Tensor:
    """Sums over trees, [G, H, N, C]; differentiable once in f and x.

    Args:
        cuts: The cuts of the forest.
        f: Function of the distance, [H, D] with D larger than every distance.
        x: Numbers of the nodes, [G, H, N, C].
    """
    return _forest_table(_Sums(cuts, f.contiguous(), x.contiguous()))


def count_transformed_levels(cuts: Decomposition) -> int:
    """Levels of cuts that go through transforms, which leave rounding noise where there should be nothing."""
    return len(torch.unique(cuts.runs[cuts.is_long[::2], 2]))
