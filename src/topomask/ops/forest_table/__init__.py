r"""Sums over the nodes of every tree, weighted by any function of distance: :math:`y_i = \sum_j f(d_{ij})\, x_j`."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.backend import implementation
from topomask.ops.forest_table.decomposition import Decomposition, decompose
from topomask.ops.registration import Op, check_shape

__all__ = ["Decomposition", "count_transformed_levels", "decompose", "forest_table"]


class _Sums(NamedTuple):
    cuts: Decomposition
    f: Tensor  # [H, D]
    x: Tensor  # [G, H, N, C]

    def check(self) -> None:
        """A ValueError where shapes do not fit, or f ends before the largest distance."""
        check_shape("f", self.f, None, None)
        check_shape("x", self.x, None, len(self.f), len(self.cuts.nodes), None)
        segments.check_once(_check_reach, (self.cuts.slot_ptr, self.cuts.distances), self.f.shape[1])


def _check_reach(slot_ptr: Tensor, distances: Tensor, num_distances: int) -> None:
    """The two sides of a cut are as far apart as the sum of their distances to it."""
    sides = slot_ptr.new_zeros(len(slot_ptr) - 1)
    sides = sides.scatter_reduce(0, segments.index(slot_ptr), distances.to(sides.dtype), "amax")
    largest = int(sides.max()) if len(sides) else 0
    # The sum of two that are larger still might wrap.
    if largest < num_distances and len(sides):
        largest = int(sides.view(-1, 2).sum(dim=1).max())
    if largest >= num_distances:
        raise ValueError(
            f"`f` has values of distances below {num_distances}, but there are nodes {largest} apart. Pass "
            f"{largest + 1} values."
        )


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
    items=("x",),
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
