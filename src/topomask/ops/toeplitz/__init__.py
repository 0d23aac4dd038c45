"""Products and attention with block Toeplitz matrices, M_ij = b[j - i] for i and j on a grid, in O(N log N)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from torch import Tensor

from topomask.ops.registration import Op
from topomask.ops.toeplitz import fourier
from topomask.ops.toeplitz.fourier import padded_shape

__all__ = ["attend", "compact", "padded_shape", "product", "spectrum"]


def compact(shape: Sequence[int]) -> list[int]:
    """Return the shape of a grid without axes of size 1, which need no transform."""
    return [size for size in shape if size > 1] or [1]


class _Values(NamedTuple):
    values: Tensor  # [H, 2 X - 1, ...]
    shape: Sequence[int]


class _Product(NamedTuple):
    spectrum: Tensor  # [H, K, ..., 2]
    x: Tensor  # [B, H, N, C]
    shape: Sequence[int]
    transpose: bool


class _Attention(NamedTuple):
    spectrum: Tensor  # [H, K, ..., 2]
    q: Tensor  # [B, H, N, M]
    k: Tensor  # [B, H, N, M]
    v: Tensor  # [B, H, N, D]
    shape: Sequence[int]


def _spectrum(arguments: _Values) -> Tensor:
    return fourier.spectrum(*arguments)


def _spectrum_fake(arguments: _Values) -> Tensor:
    return arguments.values.new_empty(len(arguments.values), *fourier.spectrum_shape(arguments.shape), 2)


def _spectrum_backward(
    arguments: _Values, _: tuple[Tensor, ...], grad: Tensor, wanted: Collection[str]
) -> dict[str, Tensor]:
    return {"values": fourier.spectrum_backward(grad, arguments.shape)}


def _product(arguments: _Product) -> Tensor:
    return fourier.product(*arguments)


def _product_backward(
    arguments: _Product, _: tuple[Tensor, ...], grad: Tensor, wanted: Collection[str]
) -> dict[str, Tensor]:
    grads = fourier.product_backward(*arguments, grad, learns="spectrum" in wanted)
    return dict(zip(("spectrum", "x"), grads, strict=True))


def _attend(arguments: _Attention) -> Tensor:
    return fourier.attend(*arguments)


def _attend_backward(
    arguments: _Attention, _: tuple[Tensor, ...], grad: Tensor, wanted: Collection[str]
) -> dict[str, Tensor]:
    grads = fourier.attend_backward(*arguments, grad, learns="spectrum" in wanted)
    return dict(zip(("spectrum", "q", "k", "v"), grads, strict=True))


_spectrum_op = Op(
    "toeplitz_spectrum",
    _Values,
    _spectrum,
    _spectrum_fake,
    gradients=("values",),
    backward_kernel=_spectrum_backward,
    shapes_only=("values",),
)
_product_op = Op(
    "toeplitz_product",
    _Product,
    _product,
    lambda arguments: arguments.x.new_empty(arguments.x.shape),
    gradients=("spectrum", "x"),
    backward_kernel=_product_backward,
    items=("x",),
)
_attend_op = Op(
    "toeplitz_attend",
    _Attention,
    _attend,
    lambda arguments: arguments.v.new_empty(arguments.v.shape),
    gradients=("spectrum", "q", "k", "v"),
    backward_kernel=_attend_backward,
    items=("q", "k", "v"),
)


def spectrum(values: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the spectrum of a block Toeplitz matrix on a :func:`compact` grid, for the functions below.

    Args:
        values: b for every offset j - i and head, [H, 2 X - 1, ...], offset 0 in the middle.
        shape: Shape of the grid.
    """
    return _spectrum_op(_Values(values, shape))


def product(spectrum: Tensor, x: Tensor, shape: Sequence[int], transpose: bool = False) -> Tensor:
    """Return M x, or M^T x, for x [..., H, N, C]; a single head is used for any number of heads."""
    return _product_op(_Product(spectrum, _four_axes(x, len(spectrum)), shape, transpose)).reshape(x.shape)


def attend(spectrum: Tensor, q: Tensor, k: Tensor, v: Tensor, shape: Sequence[int]) -> Tensor:
    """Return sums over j of M_ij q_i^T k_j v_j, [..., H, N, D], for q and k [..., H, N, M] and v [..., H, N, D]."""
    by_query, by_key, by_value = (_four_axes(x, len(spectrum)) for x in (q, k, v))
    return _attend_op(_Attention(spectrum, by_query, by_key, by_value, shape)).reshape(v.shape)


def _four_axes(x: Tensor, num_heads: int) -> Tensor:
    """Reshape x into [B, H, N, C] for a mask of H heads."""
    return x.reshape(x.shape[:-2].numel() // num_heads, num_heads, *x.shape[-2:])
