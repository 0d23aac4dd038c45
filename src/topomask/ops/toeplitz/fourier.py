"""Products with block Toeplitz matrices as circular convolutions, by real fast Fourier transforms; pure torch.

Columns are stored as rows here, [..., X, Y, ...], so that every transform runs over the last axis: torch would copy its
input for any other axis. Axes are transformed from the last to the first, and each is padded just before, so that no
padding is transformed needlessly. The spectrum then has its axes in reverse order, [K, P_y, P_x], with the half axis
first. Only a few columns are transformed at a time, so that they stay in the cache.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import torch
from scipy.fft import next_fast_len
from torch import Tensor

# The most complex numbers in the spectra of columns that are transformed at a time.
_NUMBERS_PER_BLOCK = 1 << 19

Block = tuple[slice, ...]


def padded_shape(shape: Sequence[int]) -> list[int]:
    """Return sizes for which circular convolution does not wrap around, and which are products of small primes."""
    return [next_fast_len(2 * size - 1, real=True) for size in shape]


def spectrum_shape(shape: Sequence[int]) -> list[int]:
    """Return the shape of a spectrum, in complex numbers."""
    padded = padded_shape(shape)
    return [padded[-1] // 2 + 1, *reversed(padded[:-1])]


def spectrum(values: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the spectrum [H, K, ..., P_x, 2] of values per offset, [H, 2 X - 1, ...], offset 0 in the middle."""
    padded, axes = padded_shape(shape), list(range(1, 1 + len(shape)))
    circular = values.new_zeros(len(values), *padded)
    circular[_corner(values.shape[1:])] = values
    circular = circular.roll([1 - size for size in shape], axes)
    transformed = torch.fft.rfftn(circular, dim=axes).permute(0, *reversed(axes))
    return torch.view_as_real(transformed.contiguous())


def spectrum_backward(grad: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the gradient of the values per offset, given that of their spectrum."""
    padded, axes = padded_shape(shape), list(range(1, 1 + len(shape)))
    z = (torch.view_as_complex(grad.contiguous()) / _multiplicity(grad, shape)).permute(0, *reversed(axes))
    if len(shape) > 1:
        # All axes but the last: the gradient lacks the symmetry that a real transform of several axes relies on.
        z = torch.fft.ifftn(z, dim=axes[:-1], norm="forward")
    circular = torch.fft.irfft(z, n=padded[-1], norm="forward").roll([size - 1 for size in shape], axes)
    return circular[_corner([2 * size - 1 for size in shape])].contiguous()


def product(spectrum: Tensor, x: Tensor, shape: Sequence[int], transpose: bool) -> Tensor:
    """Return M x, or M^T x, for x [B, H, N, C]."""
    out = x.new_empty(x.shape)
    factor, _ = _factors(spectrum, transpose)
    before, after = _columns(x, shape), _columns(out, shape)
    transform = Transform(shape, x, before.shape[:3])
    for block in transform.blocks():
        z = transform.forward(before[block])
        after[block] = transform.inverse(z.mul_(factor[block[1], None]))
    return out


def product_backward(
    spectrum: Tensor, x: Tensor, shape: Sequence[int], transpose: bool, grad: Tensor, learns: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the spectrum, or zeros unless ``learns``, and of x."""
    grad_x = x.new_empty(x.shape)
    _, factor = _factors(spectrum, transpose)
    before, after, into = (_columns(tensor, shape) for tensor in (x, grad, grad_x))
    transform = Transform(shape, x, before.shape[:3])
    total = torch.zeros_like(factor)
    for block in transform.blocks():
        z = transform.forward(after[block])
        if learns:
            other = transform.forward(before[block])
            first, second = (other, z) if transpose else (z, other)
            total[block[1]] += _correlation(first, second, dim=(0, 2))
        into[block] = transform.inverse(z.mul_(factor[block[1], None]))
    return _spectrum_gradient(total, shape), grad_x


def attend(spectrum: Tensor, q: Tensor, k: Tensor, v: Tensor, shape: Sequence[int]) -> Tensor:
    """Return sums over j of M_ij q_i^T k_j v_j, [B, H, N, D], for q and k [B, H, N, M] and v [B, H, N, D]."""
    factor, _ = _factors(spectrum, transpose=False)
    out = v.new_zeros(*v.shape[:2], v.shape[3], v.shape[2])
    q, k, v, sums = (*(_rows(x, shape) for x in (q, k, v)), out.unflatten(-1, shape))
    transform = Transform(shape, v, (*k.shape[:3], v.shape[2]))
    for block in transform.blocks():
        feature, value = block[:3], (*block[:2], block[3])
        z = transform.forward(k[feature].unsqueeze(3), v[value].unsqueeze(2))
        mixed = transform.inverse(z.mul_(factor[block[1], None, None]))
        _add_products(sums[value], mixed, q[feature].unsqueeze(3), dim=2)
    return out.mT.contiguous()


def attend_backward(
    spectrum: Tensor, q: Tensor, k: Tensor, v: Tensor, shape: Sequence[int], grad: Tensor, learns: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of the spectrum, or zeros unless ``learns``, and of q, k and v."""
    forth, back = _factors(spectrum, transpose=False)
    outs = [x.new_zeros(*x.shape[:2], x.shape[3], x.shape[2]) for x in (q, k, v)]
    grad_q, grad_k, grad_v = (x.unflatten(-1, shape) for x in outs)
    q, k, v, grad = (_rows(x, shape) for x in (q, k, v, grad))
    transform = Transform(shape, v, (*k.shape[:3], v.shape[2]))
    total = torch.zeros_like(forth)
    for block in transform.blocks():
        feature, value, heads = block[:3], (*block[:2], block[3]), (block[1], None, None)
        key_side = transform.forward(k[feature].unsqueeze(3), v[value].unsqueeze(2))
        query_side = transform.forward(q[feature].unsqueeze(3), grad[value].unsqueeze(2))
        if learns:
            total[block[1]] += _correlation(query_side, key_side, dim=(0, 2, 3))
        mixed = transform.inverse(key_side.mul_(forth[heads]))
        _add_products(grad_q[feature], mixed, grad[value].unsqueeze(2), dim=3)
        mixed = transform.inverse(query_side.mul_(back[heads]))
        _add_products(grad_k[feature], mixed, v[value].unsqueeze(2), dim=3)
        _add_products(grad_v[value], mixed, k[feature].unsqueeze(3), dim=2)
    out_q, out_k, out_v = (x.mT.contiguous() for x in outs)
    return _spectrum_gradient(total, shape), out_q, out_k, out_v


class Transform:
    """Transforms of blocks of columns, with padded memory that is reused.

    Args:
        shape: Shape of the grid.
        like: A tensor of the same precision and device.
        counts: Numbers of columns along several axes; the second axis is that of heads.
    """

    def __init__(self, shape: Sequence[int], like: Tensor, counts: Sequence[int]) -> None:
        self.shape, self.padded, self.counts = list(shape), padded_shape(shape), list(counts)
        at_most = max(1, _NUMBERS_PER_BLOCK // math.prod(spectrum_shape(shape)))
        self.steps = _steps(counts, at_most)
        columns, dtype = math.prod(self.steps), like.dtype.to_complex()
        # The padding is never written to and stays 0.
        self.paddings = [like.new_zeros(columns, *self.shape[:-1], self.padded[-1])]
        done = [self.padded[-1] // 2 + 1]
        for axis in reversed(range(len(shape) - 1)):
            done.append(self.padded[axis])
            self.paddings.append(like.new_zeros(columns, *self.shape[:axis], *done, dtype=dtype))

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks of columns to transform at a time."""
        starts = (range(0, count, step) for count, step in zip(self.counts, self.steps, strict=True))
        for corner in itertools.product(*starts):
            yield tuple(slice(start, start + step) for start, step in zip(corner, self.steps, strict=True))

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """Return the spectra of columns x [..., X, Y, ...], or of the products of two."""
        dims = len(self.shape)
        batch = x.shape[:-dims] if other is None else torch.broadcast_shapes(x.shape, other.shape)[:-dims]
        first, *rest = (padding[: batch.numel()] for padding in self.paddings)
        inner = first[..., : self.shape[-1]].unflatten(0, batch)
        if other is None:
            inner.copy_(x)
        else:
            torch.mul(x, other, out=inner)
        z = torch.fft.rfft(first)
        for axis, padding in zip(reversed(range(dims - 1)), rest, strict=True):
            padding[..., : self.shape[axis]] = z.movedim(1 + axis, -1)
            z = torch.fft.fft(padding)
        return z.unflatten(0, batch)

    def inverse(self, z: Tensor) -> Tensor:
        """Return the columns [..., X, Y, ...] of spectra."""
        batch = z.shape[: -len(self.shape)]
        z = z.flatten(0, len(batch) - 1)
        for axis, size in enumerate(self.shape[:-1]):
            z = torch.fft.ifft(z)[..., :size].movedim(-1, 1 + axis).contiguous()
        return torch.fft.irfft(z, n=self.padded[-1])[..., : self.shape[-1]].unflatten(0, batch)


def _steps(counts: Sequence[int], at_most: int) -> list[int]:
    """Return how many columns to transform along every axis, filling the last axes first, in blocks of similar size."""
    steps = []
    for count in reversed(counts):
        parts = math.ceil(count / at_most)
        steps.append(max(1, math.ceil(count / max(1, parts))))
        at_most = max(1, at_most // steps[-1])
    return steps[::-1]


def _columns(x: Tensor, shape: Sequence[int]) -> Tensor:
    """View [B, H, N, C] as [B, H, C, X, Y, ...]."""
    return x.mT.unflatten(-1, shape)


def _rows(x: Tensor, shape: Sequence[int]) -> Tensor:
    """As :func:`_columns`, but contiguous."""
    return _columns(x, shape).contiguous()


def _factors(spectrum: Tensor, transpose: bool) -> tuple[Tensor, Tensor]:
    """Return the factors of the spectra of columns, [H, K, ...], for a product and for its derivative.

    M_ij = b[j - i] is a correlation, hence the conjugate.
    """
    plain = torch.view_as_complex(spectrum.contiguous())
    conjugate = plain.conj().resolve_conj()
    return (plain, conjugate) if transpose else (conjugate, plain)


def _correlation(first: Tensor, second: Tensor, dim: tuple[int, ...]) -> Tensor:
    return (first.conj_physical() * second).sum(dim=dim)


def _add_products(total: Tensor, x: Tensor, weights: Tensor, dim: int) -> None:
    """Add the sums over ``dim`` of x times weights."""
    if x.shape[dim] == 1:
        total.addcmul_(x.squeeze(dim), weights.squeeze(dim))
    else:
        total += (x * weights).sum(dim=dim)


def _spectrum_gradient(total: Tensor, shape: Sequence[int]) -> Tensor:
    grad = torch.view_as_real(total)
    return grad * (_multiplicity(grad, shape)[..., None] / math.prod(padded_shape(shape)))


def _multiplicity(like: Tensor, shape: Sequence[int]) -> Tensor:
    """Return how often every number of the half axis occurs in the full spectrum, [K, 1, ...]."""
    size = padded_shape(shape)[-1]
    counts = like.new_full((size // 2 + 1,), 2.0)
    counts[0] = 1.0
    if size % 2 == 0:
        counts[-1] = 1.0
    return counts.reshape(-1, *[1] * (len(shape) - 1))


def _corner(sizes: Sequence[int]) -> tuple[slice, ...]:
    return (slice(None), *(slice(size) for size in sizes))
