r"""Sums over the nodes of every tree, weighted by any function of distance: :math:`y_i = \sum_j f(d_{ij})\, x_j`."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from topomask.ops.backend import compiled, in_float32
from topomask.ops.forest_table import reference
from topomask.ops.forest_table.decomposition import Decomposition, decompose

__all__ = ["Decomposition", "count_transformed_levels", "decompose", "forest_table"]


def _backend(tensor: Tensor) -> ModuleType:
    if not compiled(tensor):
        return reference
    from topomask.ops.forest_table import numba

    return numba


@torch.library.custom_op("topomask::forest_table", mutates_args=())
def _forest_table(cuts: list[Tensor], f: Tensor, x: Tensor) -> Tensor:
    return _backend(x).forest_table(Decomposition(*cuts), f, x)


@_forest_table.register_fake
def _(cuts: list[Tensor], f: Tensor, x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("topomask::forest_table_backward", mutates_args=())
def _forest_table_backward(cuts: list[Tensor], f: Tensor, x: Tensor, grad: Tensor) -> Tensor:
    return _backend(x).forest_table_backward(Decomposition(*cuts), f, x, grad)


@_forest_table_backward.register_fake
def _(cuts: list[Tensor], f: Tensor, x: Tensor, grad: Tensor) -> Tensor:
    return torch.empty_like(f)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    cuts, f, x = inputs
    ctx.save_for_backward(f, x, *cuts)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    f, x, *cuts = ctx.saved_tensors
    grad_f = _forest_table_backward(cuts, f, x, grad) if ctx.needs_input_grad[1] else None
    # The sums are symmetric.
    grad_x = _forest_table(cuts, f, grad) if ctx.needs_input_grad[2] else None
    return [None] * len(cuts), grad_f, grad_x


_forest_table.register_autograd(_backward, setup_context=_save)
in_float32(_forest_table)


def forest_table(cuts: Decomposition, f: Tensor, x: Tensor) -> Tensor:
    """Sums over trees, [G, H, N, C]; differentiable once in f and x.

    Args:
        cuts: The cuts of the forest.
        f: Function of the distance, [H, D] with D larger than every distance.
        x: Numbers of the nodes, [G, H, N, C].
    """
    return _forest_table(list(cuts), f.contiguous(), x.contiguous())


def count_transformed_levels(cuts: Decomposition) -> int:
    """Levels of cuts that go through transforms, which leave rounding noise where there should be nothing."""
    return len(torch.unique(cuts.runs[cuts.is_long[::2], 2]))
