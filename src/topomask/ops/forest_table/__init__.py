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
        """Raise a ValueError if shapes do not match, or if f ends before the largest distance."""
        check_shape("f", self.f, None, None)
        check_shape("x", self.x, None, len(self.f), len(self.cuts.nodes), None)
        segments.check_once(_check_reach, (self.cuts.slot_ptr, self.cuts.distances), self.f.shape[1])


def _check_reach(slot_ptr: Tensor, distances: Tensor, num_distances: int) -> None:
    """Raise a ValueError if two nodes are further apart than f goes: by the sum of their distances to a cut."""
    sides = slot_ptr.new_zeros(len(slot_ptr) - 1)
    sides = sides.scatter_reduce(0, segments.index(slot_ptr), distances.to(sides.dtype), "amax")
    largest = int(sides.max()) if len(sides) else 0
    # The sum of even larger distances might overflow.
    if largest < num_distances and len(sides):
        largest = int(sides.view(-1, 2).sum(dim=1).max())
    if largest >= num_distances:
        raise ValueError(
            f"`f` has values for distances below {num_distances}, but some nodes are {largest} apart. Pass "
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
    """Return sums over trees, [G, H, N, C]; once differentiable in f and x.

    Args:
        cuts: The cuts of the forest.
        f: Values of the function at the distances 0, 1, ..., [H, D], with D larger than every distance.
        x: Node values, [G, H, N, C].
    """
    return _forest_table(_Sums(cuts, f.contiguous(), x.contiguous()))


def count_transformed_levels(cuts: Decomposition) -> int:
    """Count the levels of cuts that use Fourier transforms, which leave rounding noise where results should be 0."""
    return len(torch.unique(cuts.runs[cuts.is_long[::2], 2]))
