"""The quotient at the end of attention."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from topomask.ops.registration import has_values, is_transformed


class Attended(NamedTuple):
    """The result of attention, and the normaliser that it was divided by."""

    out: Tensor  # [..., N_q, D]
    total: Tensor  # [..., N_q] or [..., N_q, 1]; detached, so it has no gradient


def smallest_total(dtype: torch.dtype) -> float:
    """Return the largest absolute value of a normaliser that is treated as zero.

    It is 2^26 times the smallest normal number. Below it, sums have lost digits, and gradients, which are divided by
    the normaliser once more, would overflow.
    """
    return torch.finfo(dtype).tiny * 2.0**26


def divide(numerator: Tensor, total: Tensor, noise: Tensor | float = 0.0) -> Attended:
    """Divide [..., D] by [..., 1]; 0 with zero gradient where the latter is 0, or within ``noise`` of it."""
    denominator = without_zeros(total, noise)
    # Transforms may need a forward-mode derivative, which the compiler does not support in autograd functions.
    out = numerator / denominator if is_transformed() else _Quotient.apply(numerator, denominator)
    return Attended(out, total.detach())


def without_zeros(total: Tensor, noise: Tensor | float = 0.0) -> Tensor:
    """Return the normaliser to divide by: infinite where it is 0, or within ``noise`` of it."""
    size, smallest = total.abs(), smallest_total(total.dtype)
    return total.masked_fill((size <= smallest) | (size <= noise), torch.inf)


def quotient_backward(grad: Tensor, out: Tensor, denominator: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the numerator [..., D] and the denominator [..., 1], in fewer passes than torch."""
    share = grad / denominator
    return share, -(share * out).sum(dim=-1, keepdim=True)


class _Quotient(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(numerator: Tensor, denominator: Tensor) -> Tensor:
        return numerator / denominator

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1], output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        denominator, out = ctx.saved_tensors
        return quotient_backward(grads[0], out, denominator)


def to_precision(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert weights to the precision of tokens.

    If that is float64 because float32 was not enough, gradients that float32 cannot hold are clamped to values that it
    can add up: these may cancel in the gradients of parameters, whereas infinite ones would not.
    """
    out, largest = weights.to(dtype), torch.finfo(weights.dtype).max * 2.0**-13
    if weights.dtype.itemsize >= dtype.itemsize or not out.requires_grad or not has_values(out) or is_transformed():
        return out
    out.register_hook(lambda grad: grad.clamp(-largest, largest))
    return out
