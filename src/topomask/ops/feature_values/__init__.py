"""Graph random features from loads and modulation, differentiable in the modulation."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from topomask.ops.backend import compiled, in_float32
from topomask.ops.feature_values import reference


def _backend(tensor: Tensor) -> ModuleType:
    if not compiled(tensor):
        return reference
    from topomask.ops.feature_values import numba

    return numba


@torch.library.custom_op("topomask::feature_values", mutates_args=())
def _feature_values(f: Tensor, head_ptr: Tensor, entry_ptr: Tensor, lengths: Tensor, loads: Tensor) -> Tensor:
    return _backend(loads).feature_values(f, head_ptr, entry_ptr, lengths, loads)


@_feature_values.register_fake
def _(f: Tensor, head_ptr: Tensor, entry_ptr: Tensor, lengths: Tensor, loads: Tensor) -> Tensor:
    return loads.new_empty(entry_ptr.shape[0] - 1)


@torch.library.custom_op("topomask::feature_values_backward", mutates_args=())
def _feature_values_backward(
    grad: Tensor, num_lengths: int, head_ptr: Tensor, entry_ptr: Tensor, lengths: Tensor, loads: Tensor
) -> Tensor:
    return _backend(loads).feature_values_backward(grad, num_lengths, head_ptr, entry_ptr, lengths, loads)


@_feature_values_backward.register_fake
def _(grad: Tensor, num_lengths: int, head_ptr: Tensor, entry_ptr: Tensor, lengths: Tensor, loads: Tensor) -> Tensor:
    return grad.new_empty(head_ptr.shape[0] - 1, num_lengths)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    f, *rest = inputs
    ctx.num_lengths = f.shape[1]
    ctx.save_for_backward(*rest)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _feature_values_backward(grad, ctx.num_lengths, *ctx.saved_tensors), None, None, None, None


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[2:])


def _backward_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _feature_values(grad, *ctx.saved_tensors), None, None, None, None, None


_feature_values.register_autograd(_backward, setup_context=_save)
in_float32(_feature_values)
_feature_values_backward.register_autograd(_backward_backward, setup_context=_save_backward)


def feature_values(f: Tensor, head_ptr: Tensor, entry_ptr: Tensor, lengths: Tensor, loads: Tensor) -> Tensor:
    """Values [P] of graph random features.

    Args:
        f: Modulation, [H, L + 1], in the dtype of ``loads``.
        head_ptr: Where the entries of every head begin, [H + 1].
        entry_ptr: Where the entries of every (node, visited node) begin, [P + 1].
        lengths: Walk length of every entry, [T].
        loads: Load of every entry, [T].
    """
    return _feature_values(f, head_ptr, entry_ptr, lengths, loads)
