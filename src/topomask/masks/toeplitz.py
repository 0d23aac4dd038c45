"""Masks on grids that depend only on the offset between two tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from topomask.graph.input import check_integer
from topomask.masks.mask import FixedMask
from topomask.masks.operator import Cost, Operator
from topomask.ops import toeplitz
from topomask.ops.registration import has_values
from topomask.walks.modulation import positive_per_head

Distance = Literal["l1", "l2", "linf"]

_MAX_DIMS = 3
# Multiply-adds, at the rate of sparse products, of a transform and its inverse per P log2 P, for padded size P.
_COST = 1.0
# Rounding errors in units of the last place, per log2 P + 1; see `ToeplitzOperator.product_noise`.
_NOISE = 1.0


class ExponentialDecay(nn.Module):
    r"""A learnable exponential decay with distance, :math:`f(d) = e^{-a d}`, per head.

    Args:
        num_heads: Heads H; each has its own rate a > 0, whose logarithm is learnt.
        rate: Initial rate, one number or one per head.

    Example:
        >>> import torch, topomask as tm
        >>> decay = tm.ExponentialDecay(num_heads=2, rate=[0.5, 1.0])
        >>> decay(torch.tensor([[0.0], [2.0]]))
        tensor([[1.0000, 1.0000],
                [0.3679, 0.1353]], grad_fn=<...>)
    """

    def __init__(self, num_heads: int = 1, rate: float | Sequence[float] | Tensor = 0.5) -> None:
        super().__init__()
        self.log_rate = nn.Parameter(positive_per_head("rate", rate, num_heads).log())

    @property
    def rate(self) -> Tensor:
        """The rate a of every head, [H], in at least float32."""
        return self.log_rate.to(torch.promote_types(self.log_rate.dtype, torch.float32)).exp()

    def forward(self, distances: Tensor) -> Tensor:
        """Return the decay at ``distances`` [..., 1], as [..., H]."""
        return torch.exp(-self.rate * distances)

    def extra_repr(self) -> str:
        """Settings shown when the module is printed."""
        return f"num_heads={len(self.log_rate)}"


class ToeplitzMask(FixedMask):
    r"""A mask on a grid that depends only on the offset between two tokens: block Toeplitz, O(N log N) by FFT.

    .. math:: M_{ij} = b_{j - i} \qquad\text{or}\qquad M_{ij} = f(\lVert j - i \rVert)

    where i and j are positions on a grid with one, two or three dimensions, numbered as in
    :func:`topomask.grid_graph`. By default every offset has its own parameter, (2X - 1)(2Y - 1) per head in two
    dimensions; on a sequence, this is kernelised attention with relative positions. If ``distance`` is given, f is
    learnt instead: a number per distinct distance, or any module.

    Products carry the rounding noise of the FFT, see :meth:`topomask.Operator.product_noise`: with ``causal=True``,
    that much of the future leaks in.

    Args:
        shape: Size of the grid: an integer, or up to three.
        num_heads: Heads; each has its own b.
        distance: ``"l1"``, ``"l2"`` or ``"linf"``, to make entries a function of this distance. Default: one free
            parameter per offset.
        f: Initial values. Without ``distance``, those of b, [2X - 1, ...] or [H, 2X - 1, ...], with offset (0, ..., 0)
            in the middle; if ``causal``, [N] or [H, N] for offsets -(N - 1), ..., 0. With ``distance``, those of f at
            the sorted :attr:`distances`, [K] or [H, K], or a module that maps distances [K, 1] to [K, H] or [K, 1],
            such as :class:`topomask.ExponentialDecay` or an MLP. Default: 1 / (1 + distance), Euclidean without
            ``distance``.
        positive: Learn logarithms: entries are exp(b) or exp(f), so the normaliser needs no separate product.
        causal: Keep only keys j <= i. For sequences.

    Example:
        >>> import torch, topomask as tm
        >>> mask = tm.ToeplitzMask((8, 8), num_heads=2)
        >>> mask.weight.shape, (mask @ torch.randn(2, 64, 16)).shape
        (torch.Size([2, 15, 15]), torch.Size([2, 64, 16]))
        >>> decay = tm.ToeplitzMask((8, 8), num_heads=2, distance="l1", f=tm.ExponentialDecay(num_heads=2))

    References:
        Choromanski et al. (2022); Luo et al. (2021), *Stable, fast and accurate: kernelized attention with relative
        positional encoding*.
    """

    weight: Tensor
    f: nn.Module | None
    _shown = ("shape", "num_heads", "distance", "positive", "causal")

    def __init__(
        self,
        shape: int | Sequence[int],
        *,
        num_heads: int = 1,
        distance: Distance | None = None,
        f: Tensor | nn.Module | None = None,
        positive: bool = False,
        causal: bool = False,
    ) -> None:
        check_integer("num_heads", num_heads, 1)
        super().__init__(num_heads=num_heads)
        self.shape = _check_shape(shape)
        if distance is not None and distance not in get_args(Distance):
            raise ValueError(f"`distance` must be None or one of {get_args(Distance)}, but is {distance!r}.")
        if causal and len(self.shape) > 1:
            raise ValueError(
                f"`causal` is for sequences, but `shape` is {self.shape}, and tokens on a grid have no order. "
                "Pass one size, or causal=False."
            )
        self.distance, self.positive, self.causal = distance, positive, causal
        self._grid = toeplitz.compact(self.shape)
        self._padded_size = math.prod(toeplitz.padded_shape(self._grid))
        # Neither parameters nor buffers: they keep their precision, and their values on the meta device.
        self._levels, self._index = _levels(self.shape, distance or "l2", causal)
        self.f = f if isinstance(f, nn.Module) else None
        if isinstance(f, nn.Module):
            if distance is None:
                raise ValueError("`f` is a module, which needs `distance`. Pass distance='l1', 'l2' or 'linf'.")
            self.register_parameter("weight", None)
        else:
            self.weight = nn.Parameter(self._initial(f))
        self._move()

    def _initial(self, f: Tensor | None) -> Tensor:
        """Check the initial values, and return them or their logarithms."""
        if f is None:
            f = 1.0 / (1.0 + self._distances().to(torch.get_default_dtype()))
            f = f if self.distance else f[self._index]
            f = f.to(torch.get_default_device())
        f = torch.as_tensor(f).detach()
        f = f if f.is_floating_point() else f.to(torch.get_default_dtype())
        expected = self._levels.shape if self.distance else self._index.shape
        if f.shape not in (expected, (self.num_heads, *expected)):
            raise ValueError(
                f"`f` must have shape {list(expected)} or {[self.num_heads, *expected]}, but has shape "
                f"{tuple(f.shape)}. Pass one number per {'distinct distance' if self.distance else 'offset'}."
            )
        if has_values(f) and not bool(f.isfinite().all()):
            raise ValueError("`f` must be finite, but has NaN or infinite values.")
        if self.positive and has_values(f) and not bool((f > 0).all()):
            raise ValueError("With positive=True, `f` must be positive. Pass positive=False for entries of any sign.")
        return (f.log() if self.positive else f).expand(self.num_heads, *expected).clone()

    @property
    def distances(self) -> Tensor:
        """The sorted distinct distances, [K], of a mask that is a function of distance."""
        if self.distance is None:
            raise ValueError("This mask has one parameter per offset, not per distance. Build it with `distance`.")
        return self._distances().to(torch.get_default_dtype())

    def _distances(self) -> Tensor:
        levels = self._levels.to(torch.float64)
        return levels.sqrt() if self.distance in (None, "l2") else levels

    def offset_values(self) -> Tensor:
        """Return the entries by offset, [H, 2X - 1, ...], with offset (0, ..., 0) in the middle."""
        values = self.weight if self.f is None else self._apply_f(self.f)
        values = values.to(torch.promote_types(values.dtype, torch.float32))
        values = values.exp() if self.positive else values
        values = values[:, self._index] if self.distance else values
        return F.pad(values, (0, self.shape[0] - 1)) if self.causal else values

    def _apply_f(self, f: nn.Module) -> Tensor:
        """Return the values of f at all distances, [H, K]."""
        dtype = next((x.dtype for x in f.parameters() if x.is_floating_point()), torch.get_default_dtype())
        if isinstance(f, ExponentialDecay):
            # It accepts any precision; a user's module may accept only that of its parameters.
            dtype = torch.promote_types(dtype, torch.float32)
        values = f(self._distances().to(self.kind[1], dtype)[:, None])
        if values.shape not in ((len(self._levels), 1), (len(self._levels), self.num_heads)):
            raise ValueError(
                f"`f` must map distances [{len(self._levels)}, 1] to [{len(self._levels)}, num_heads={self.num_heads}] "
                f"or [{len(self._levels)}, 1], but returned shape {tuple(values.shape)}."
            )
        return values.mT.expand(self.num_heads, -1)

    def _operator(self) -> Operator:
        return ToeplitzOperator(self, self.offset_values())

    def _move(self) -> None:
        _, device = self.kind
        if device.type != "meta":
            self._levels, self._index = self._levels.to(device), self._index.to(device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self._move()
        return self


class ToeplitzOperator(Operator):
    """A block Toeplitz matrix per head, from its entries by offset, [H, 2X - 1, ...], in at least float32."""

    def __init__(self, mask: ToeplitzMask, values: Tensor) -> None:
        super().__init__(mask, num_tokens=math.prod(mask.shape))
        self._values, self._shape, self._positive = values, mask.shape, mask.positive
        self._grid, self._padded_size = mask._grid, mask._padded_size

    def _spectrum(self, dtype: torch.dtype) -> Tensor:
        """Return the spectrum of the entries, in the precision of a product with this one."""
        fine = torch.promote_types(self._values.dtype, dtype)
        compact = self._values.reshape(self.num_heads, *(2 * size - 1 for size in self._grid))
        return self._once(fine, lambda: toeplitz.spectrum(compact.to(fine), self._grid))

    def _multiply(self, x: Tensor, transpose: bool) -> Tensor:
        spectrum = self._spectrum(x.dtype)
        return toeplitz.product(spectrum, x.to(spectrum.dtype), self._grid, transpose).to(x.dtype)

    def matmul(self, x: Tensor) -> Tensor:
        """M x, a correlation with b."""
        return self._multiply(x, transpose=False)

    def rmatmul(self, x: Tensor) -> Tensor:
        """M^T x, a convolution with b."""
        return self._multiply(x, transpose=True)

    def attend(self, phi_q: Tensor, phi_k: Tensor, v: Tensor) -> Tensor:
        """Attention a few columns at a time, fused so that intermediate results stay in the cache."""
        spectrum = self._spectrum(v.dtype)
        q, k, values = (x.to(spectrum.dtype) for x in (phi_q, phi_k, v))
        return toeplitz.attend(spectrum, q, k, values, self._grid).to(v.dtype)

    def product_noise(self, x: Tensor) -> Tensor:
        r"""A bound on the rounding error of every entry of a product, [..., H, 1, C].

        .. math:: c\,\epsilon\,\log_2 P\;\lVert b \rVert_2\,\lVert x \rVert_2

        P is the padded size of the grid and c is 1 for log2 P + 1. The error of a transform is at most a small multiple
        of :math:`\epsilon \log_2 P` times its result in the 2-norm (Higham, 2002, Thm. 24.2). By Parseval and
        Cauchy-Schwarz, the errors of the spectra of b and x contribute at most that times the two norms to an entry of
        the product. The errors of the last transform spread evenly over its entries, whose root mean square the two
        norms also bound. Measured errors, on random and adversarial inputs, stay below half of the bound for a few
        nodes, and below a fifth for more.
        """
        # In the precision of the results, which half-precision inputs are cast to.
        dtype = torch.promote_types(x.dtype, self._values.dtype)
        size = torch.linalg.vector_norm(self._values.detach().flatten(1), dim=1)[:, None, None]
        norms = torch.linalg.vector_norm(x.detach().to(dtype), dim=-2, keepdim=True)
        scale = _NOISE * torch.finfo(dtype).eps * (1.0 + math.log2(self._padded_size))
        return scale * size.to(dtype) * norms

    def to_dense(self) -> Tensor:
        """M, [H, N, N]."""
        windows, dims = self._values, len(self._shape)
        for axis, size in enumerate(self._shape):
            windows = windows.unfold(1 + axis, size, 1)
        # Windows slide forwards over the offsets, which decrease with the query.
        return windows.flip(list(range(1, 1 + dims))).reshape(self.num_heads, self.num_queries, self.num_keys)

    def submatrix(self, query_nodes: Tensor | None, key_nodes: Tensor | None) -> Tensor:
        """The entries in these rows and columns, by their offsets."""
        device = self._values.device
        queries, keys = (
            torch.arange(self.num_keys, device=device) if nodes is None else nodes.to(device)
            for nodes in (query_nodes, key_nodes)
        )
        place = torch.zeros(len(queries), len(keys), dtype=torch.int64, device=device)
        below = self.num_keys
        for size in self._shape:
            below //= size
            offset = keys // below % size - (queries // below % size)[:, None]
            place = place * (2 * size - 1) + offset + size - 1
        return self._values.flatten(1)[:, place]

    def magnitude(self) -> ToeplitzOperator:
        """The absolute entries."""
        if self._positive:
            return self
        return self._once("magnitude", lambda: self._copy(_values=self._values.abs(), _positive=True))

    def cost(self) -> Cost:
        """Transforms of the padded grid, P log2 P per head, for the spectrum too; dense entries cost nothing."""
        product = math.ceil(_COST * self.num_heads * self._padded_size * math.log2(2 * self._padded_size))
        return Cost(product, dense=0, refresh=0 if self._is_kept else product)


def _check_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    sizes = (shape,) if isinstance(shape, (int, np.integer)) else shape
    if not isinstance(sizes, (tuple, list)) or not 1 <= len(sizes) <= _MAX_DIMS:
        raise ValueError(f"`shape` must be an integer or a tuple of 1 to {_MAX_DIMS} sizes, but is {shape!r}.")
    for axis, size in enumerate(sizes):
        check_integer(f"shape[{axis}]", size, 1)
    return tuple(int(size) for size in sizes)


def _levels(shape: tuple[int, ...], distance: Distance, causal: bool) -> tuple[Tensor, Tensor]:
    """Return the distinct distances, squared for ``"l2"``, [K], and the index of every offset's, [2X - 1, ...]."""
    offsets = np.meshgrid(*(np.abs(np.arange(1 - size, size)) for size in shape), indexing="ij", sparse=True)
    if distance == "linf":
        length = np.maximum.reduce(np.broadcast_arrays(*offsets))
    else:
        length = np.asarray(sum(x**2 if distance == "l2" else x for x in offsets))
    levels, index = np.unique(length[: shape[0]] if causal else length, return_inverse=True)
    index = index.reshape(-1) if causal else index.reshape(length.shape)
    return torch.from_numpy(levels), torch.from_numpy(index)
