"""Products and attention with block Toeplitz matrices, M_ij = b[j - i] for i and j on a grid, in O(N log N)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from topomask.ops.backend import in_float32
from topomask.ops.toeplitz import fourier
from topomask.ops.toeplitz.fourier import padded_shape

__all__ = ["attend", "compact", "padded_shape", "product", "spectrum"]


def compact(shape: Sequence[int]) -> list[int]:
    """The shape of a grid without axes of size 1, which need no transform."""
    return [size for size in shape if size > 1] or [1]


@torch.library.custom_op("topomask::toeplitz_spectrum", mutates_args=())
def _spectrum(values: Tensor, shape: Sequence[int]) -> Tensor:
    return fourier.spectrum(values, shape)


@_spectrum.register_fake
def _(values: Tensor, shape: Sequence[int]) -> Tensor:
    return values.new_empty(values.shape[0], *fourier.spectrum_shape(shape), 2)


@torch.library.custom_op("topomask::toeplitz_spectrum_backward", mutates_args=())
def _spectrum_backward(grad: Tensor, shape: Sequence[int]) -> Tensor:
    return fourier.spectrum_backward(grad, shape)


@_spectrum_backward.register_fake
def _(grad: Tensor, shape: Sequence[int]) -> Tensor:
    return grad.new_empty(grad.shape[0], *(2 * size - 1 for size in shape))


@torch.library.custom_op("topomask::toeplitz_product", mutates_args=())
def _product(spectrum: Tensor, x: Tensor, shape: Sequence[int], transpose: bool) -> Tensor:
    return fourier.product(spectrum, x, shape, transpose)


@_product.register_fake
def _(spectrum: Tensor, x: Tensor, shape: Sequence[int], transpose: bool) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("topomask::toeplitz_product_backward", mutates_args=())
def _product_backward(
    spectrum: Tensor, x: Tensor, grad: Tensor, shape: Sequence[int], transpose: bool, learns: bool
) -> tuple[Tensor, Tensor]:
    return fourier.product_backward(spectrum, x, grad, shape, transpose, learns)


@_product_backward.register_fake
def _(
    spectrum: Tensor, x: Tensor, grad: Tensor, shape: Sequence[int], transpose: bool, learns: bool
) -> tuple[Tensor, Tensor]:
    return spectrum.new_empty(spectrum.shape), x.new_empty(x.shape)


@torch.library.custom_op("topomask::toeplitz_attend", mutates_args=())
def _attend(spectrum: Tensor, q: Tensor, k: Tensor, v: Tensor, shape: Sequence[int]) -> Tensor:
    return fourier.attend(spectrum, q, k, v, shape)


@_attend.register_fake
def _(spectrum: Tensor, q: Tensor, k: Tensor, v: Tensor, shape: Sequence[int]) -> Tensor:
    return v.new_empty(v.shape)


@torch.library.custom_op("topomask::toeplitz_attend_backward", mutates_args=())
def _attend_backward(
    spectrum: Tensor, q: Tensor, k: Tensor, v: Tensor, grad: Tensor, shape: Sequence[int], learns: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return fourier.attend_backward(spectrum, q, k, v, grad, shape, learns)


@_attend_backward.register_fake
def _(
    spectrum: Tensor, q: Tensor, k: Tensor, v: Tensor, grad: Tensor, shape: Sequence[int], learns: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return tuple(x.new_empty(x.shape) for x in (spectrum, q, k, v))  # type: ignore[return-value]


def _save_spectrum(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.shape = inputs[1]


def _backward_spectrum(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return _spectrum_backward(grad, ctx.shape), None


def _save_product(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.shape, ctx.transpose = inputs[2:]


def _backward_product(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
    learns = ctx.needs_input_grad[0]
    grads = _product_backward(*ctx.saved_tensors, grad, ctx.shape, ctx.transpose, learns)
    return grads[0] if learns else None, grads[1], None, None


def _save_attend(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.shape = inputs[4]


def _backward_attend(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    learns = ctx.needs_input_grad[0]
    grads = _attend_backward(*ctx.saved_tensors, grad, ctx.shape, learns)
    return grads[0] if learns else None, *grads[1:], None


_spectrum.register_autograd(_backward_spectrum, setup_context=_save_spectrum)
_product.register_autograd(_backward_product, setup_context=_save_product)
_attend.register_autograd(_backward_attend, setup_context=_save_attend)
for _op in (_spectrum, _product, _attend):
    in_float32(_op)


def spectrum(values: Tensor, shape: Sequence[int]) -> Tensor:
    """The spectrum of a block Toeplitz matrix on a :func:`compact` grid, for the functions below.

    Args:
        values: b for every offset j - i and head, [H, 2 X - 1, ...], offset 0 in the middle.
        shape: Of the grid.
    """
    return _spectrum(values, shape)


def product(spectrum: Tensor, x: Tensor, shape: Sequence[int], transpose: bool = False) -> Tensor:
    """M x, or M^T x, for x [..., H, N, C]; one head serves any number of heads."""
    return _product(spectrum, _four_axes(x, len(spectrum)), shape, transpose).reshape(x.shape)


def attend(spectrum: Tensor, q: Tensor, k: Tensor, v: Tensor, shape: Sequence[int]) -> Tensor:
    """Sums over j of M_ij q_i^T k_j v_j, [..., H, N, D], for q and k [..., H, N, M] and v [..., H, N, D]."""
    return _attend(spectrum, *(_four_axes(x, len(spectrum)) for x in (q, k, v)), shape).reshape(v.shape)


def _four_axes(x: Tensor, num_heads: int) -> Tensor:
    """[B, H, N, C] for a mask of H heads."""
    return x.reshape(x.shape[:-2].numel() // num_heads, num_heads, *x.shape[-2:])
