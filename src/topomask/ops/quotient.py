"""The quotient at the end of attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def divide(numerator: Tensor, denominator: Tensor, noise: Tensor | float = 0.0) -> Tensor:
    """The quotient of [..., D] by [..., 1]; 0 with zero gradient where the latter is 0, or cannot be told from it."""
    nothing = denominator.abs() <= noise
    return _Quotient.apply(numerator, denominator.masked_fill(nothing, torch.inf))


def quotient_backward(grad: Tensor, out: Tensor, denominator: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients in the numerator [..., D] and in the denominator [..., 1], in fewer passes than torch takes."""
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
