r"""Sums over the nodes of every tree of a forest, weighted by exponentials of distances, in two passes.

With a logarithm :math:`z_e` per edge, :math:`y_i = \sum_r c_r \sum_j x_j \exp(\sum_{e \in i \ldots j} z_{re})`. Sums
over what is below a place follow from those of its children. All sums follow from those of its parent: of them it has
all but what is below it, and that in full. Where no factor :math:`w = e^z` is larger than 1 this is :math:`t_v = (1 -
w^2) b_v + w t_p`, which takes nothing off; elsewhere, sums without a child are put together from its siblings before
and after it. The derivative in :math:`z_e` is what one end has of x times what the other has of the gradient, and the
other way round.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from topomask.ops.backend import compiled, in_float32
from topomask.ops.forest_sums import reference
from topomask.ops.rooted_forest import RootedForest


def _backend(tensor: Tensor) -> ModuleType:
    if not compiled(tensor):
        return reference
    from topomask.ops.forest_sums import numba

    return numba


@torch.library.custom_op("topomask::forest_sums", mutates_args=())
def _forest_sums(forest: list[Tensor], logs: Tensor, coefficients: Tensor, x: Tensor, growing: bool) -> Tensor:
    return _backend(x).forest_sums(RootedForest(*forest), logs.double(), coefficients.double(), x, growing)


@_forest_sums.register_fake
def _(forest: list[Tensor], logs: Tensor, coefficients: Tensor, x: Tensor, growing: bool) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("topomask::forest_sums_backward", mutates_args=())
def _forest_sums_backward(
    forest: list[Tensor], logs: Tensor, coefficients: Tensor, x: Tensor, grad: Tensor, growing: bool
) -> tuple[Tensor, Tensor, Tensor]:
    found = _backend(x).forest_sums_backward(
        RootedForest(*forest), logs.double(), coefficients.double(), x, grad, growing
    )
    return found[0].to(logs.dtype), found[1].to(coefficients.dtype), found[2]


@_forest_sums_backward.register_fake
def _(
    forest: list[Tensor], logs: Tensor, coefficients: Tensor, x: Tensor, grad: Tensor, growing: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(logs), torch.empty_like(coefficients), x.new_empty(x.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    forest, logs, coefficients, x, ctx.growing = inputs
    ctx.save_for_backward(logs, coefficients, x, *forest)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    logs, coefficients, x, *forest = ctx.saved_tensors
    nothing = [None] * len(forest)
    if not (ctx.needs_input_grad[1] or ctx.needs_input_grad[2]):
        # The sums are symmetric.
        return nothing, None, None, _forest_sums(forest, logs, coefficients, grad, ctx.growing), None
    return nothing, *_forest_sums_backward(forest, logs, coefficients, x, grad, ctx.growing), None


_forest_sums.register_autograd(_backward, setup_context=_save)
in_float32(_forest_sums)


def forest_sums(
    forest: RootedForest, logs: Tensor, coefficients: Tensor, x: Tensor, *, growing: bool = False
) -> Tensor:
    """Sums over trees, [G, H, N, C]; differentiable once in logarithms, coefficients and x.

    Args:
        forest: The forest.
        logs: Logarithm of the factor of the edge to the parent of every place, [H, R, N] for R terms.
        coefficients: Coefficients of the terms, [H, R].
        x: Numbers of the nodes, [G, H, N, C].
        growing: Whether factors may be larger than 1.
    """
    return _forest_sums(list(forest), logs, coefficients, x, growing)
