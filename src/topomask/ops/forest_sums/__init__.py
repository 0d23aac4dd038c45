r"""Sums over the nodes of every tree of a forest, weighted by exponentials of distances, in two passes.

With a logarithm :math:`z_e` per edge, :math:`y_i = \sum_r c_r \sum_j x_j \exp(\sum_{e \in i \ldots j} z_{re})`. A first
pass, from leaves to roots, computes the sums :math:`b_v` over the subtree of every node v from those of its children. A
second pass, back to the leaves, computes the sums :math:`t_v` over the whole tree from that of the parent p. If no
factor :math:`w = e^z` is larger than 1, :math:`t_v = (1 - w^2) b_v + w t_p`, which subtracts nothing. Otherwise, the
sum without the subtree of a child is added up from its parent and its siblings before and after it. The derivative with
respect to :math:`z_e` is the sum of x on one side of the edge times the sum of the gradient on the other, and the same
with the sides exchanged.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from torch import Tensor

from topomask.ops.backend import implementation
from topomask.ops.registration import Op, check_shape
from topomask.ops.rooted_forest import RootedForest


class Sums(NamedTuple):
    """Inputs of sums over the trees of a forest."""

    forest: RootedForest
    logs: Tensor  # [H, R, N], logarithm of the factor of the edge to the parent of every place, for R terms
    coefficients: Tensor  # [H, R]
    x: Tensor  # [G, H, N, C]
    growing: bool  # whether factors may be larger than 1

    def check(self) -> None:
        """Raise a ValueError unless shapes match."""
        size, (num_heads, num_terms) = len(self.forest.nodes), self.coefficients.shape
        check_shape("logs", self.logs, num_heads, num_terms, size)
        check_shape("x", self.x, None, num_heads, size, None)


def _forward(sums: Sums) -> Tensor:
    return implementation(__name__, sums.x).forest_sums(_in_float64(sums))


def _backward(sums: Sums, _: tuple[Tensor, ...], grad: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
    backend = implementation(__name__, sums.x)
    if set(wanted) == {"x"}:
        # The sums are symmetric.
        return {"x": backend.forest_sums(_in_float64(sums._replace(x=grad)))}
    grads = backend.forest_sums_backward(_in_float64(sums), grad)
    return {name: grads[name].to(getattr(sums, name).dtype) for name in wanted}


def _in_float64(sums: Sums) -> Sums:
    return sums._replace(logs=sums.logs.double(), coefficients=sums.coefficients.double())


_forest_sums = Op(
    "forest_sums",
    Sums,
    _forward,
    lambda sums: sums.x.new_empty(sums.x.shape),
    gradients=("logs", "coefficients", "x"),
    backward_kernel=_backward,
    items=("x",),
)


def forest_sums(
    forest: RootedForest, logs: Tensor, coefficients: Tensor, x: Tensor, *, growing: bool = False
) -> Tensor:
    """Return sums over trees, [G, H, N, C]; once differentiable in logarithms, coefficients and x.

    Args:
        forest: The forest.
        logs: Logarithm of the factor of the edge to the parent of every place, [H, R, N] for R terms.
        coefficients: Coefficients of the terms, [H, R].
        x: Node values, [G, H, N, C].
        growing: Whether factors may be larger than 1.
    """
    return _forest_sums(Sums(forest, logs, coefficients, x, growing))
