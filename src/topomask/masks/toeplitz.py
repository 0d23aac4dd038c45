"""Masks on a grid that depend on the offset between two tokens alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from topomask.graph import Graph
from topomask.graph.input import check_integer
from topomask.masks.mask import Mask
from topomask.masks.operator import Cost, Operator
from topomask.ops import toeplitz
from topomask.ops.registration import has_values

Distance = Literal["l1", "l2", "linf"]

_MAX_DIMS = 3
# Multiply-adds, at the rate of sparse products, that a transform forth and back takes per P log2 P, P the padded size.
_COST = 1.0
# Rounding errors in units of the last place, per log2 P + 1; see `ToeplitzOperator.product_noise`.
_NOISE = 1.0


class ToeplitzMask(Mask):
    r"""A mask on a grid that depends on the offset between two tokens alone: block Toeplitz, O(N log N) by FFT.

    .. math:: M_{ij} = b_{j - i} \qquad\text{or}\qquad M_{ij} = f(\lVert j - i \rVert)

    where i and j are places on a grid of one, two or three dimensions, numbered as :func:`topomask.grid_graph` does.
    By default every offset has its own parameter, (2X - 1)(2Y - 1) per head in two dimensions; on a sequence this is
    kernelised attention with relative positions. With a ``distance``, f is learnt instead: a number per distinct
    distance, or any module.

    Entries of products carry the rounding noise of FFT, see :meth:`topomask.Operator.product_noise`: with
    ``causal=True`` that much of the future is seen.

    Args:
        shape: Size of the grid, an integer or up to three.
        num_heads: Heads; each has its own b.
        distance: ``"l1"``, ``"l2"`` or ``"linf"``: the entries are a function of this distance between places.
            Default: they are free.
        f: Without ``distance``, values of b to start from, [2X - 1, ...] or [H, 2X - 1, ...], those of offset
            (0, ..., 0) in the middle; [N] or [H, N] for offsets -(N - 1), ..., 0 if ``causal``. With it, values of f to
            start from at the sorted :attr:`distances`, [K] or [H, K], or a module that maps distances [K, 1] to
            [K, H] or [K, 1], such as :class:`topomask.ExponentialDecay` or a perceptron. Default:
            1 / (1 + distance), Euclidean where there is no ``distance``.
        positive: Learn logarithms: entries are exp(b) or exp(f), so the normaliser costs no product of its own.
        causal: Keep keys j <= i only. For sequences.

    Example:
        >>> import torch, topomask as tm
        >>> mask = tm.ToeplitzMask((8, 8), num_heads=2)
        >>> mask.weight.shape, (mask @ torch.randn(2, 64, 16)).shape
        (torch.Size([2, 15, 15]), torch.Size([2, 64, 16]))
        >>> decay = tm.ToeplitzMask((8, 8), 2, distance="l1", f=tm.ExponentialDecay(num_heads=2))

    References:
        Choromanski et al. (2022); Luo et al. (2021), *Stable, fast and accurate: kernelized attention with relative
        positional encoding*.
    """

    weight: Tensor
    f: nn.Module | None
    takes_graph = False

    def __init__(
        self,
        shape: int | Sequence[int],
        num_heads: int = 1,
        *,
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
                f"`causal` is for sequences, but `shape` is {self.shape}: on a grid no token is before another. "
                "Pass one size, or causal=False."
            )
        self.distance, self.positive, self.causal = distance, positive, causal
        self._grid = toeplitz.compact(self.shape)
        self._padded_size = math.prod(toeplitz.padded_shape(self._grid))
        # Neither parameters nor buffers: they keep their precision, and are there when the mask is built on no device.
        self._levels, self._index = _levels(self.shape, distance or "l2", causal)
        self.f = f if isinstance(f, nn.Module) else None
        if isinstance(f, nn.Module):
            if distance is None:
                raise ValueError("`f` is a module, which maps distances. Say which with `distance`.")
            self.register_parameter("weight", None)
        else:
            self.weight = nn.Parameter(self._initial(f))
        self._move()

    def _initial(self, f: Tensor | None) -> Tensor:
        """Checked values to start from, or their logarithms."""
        if f is None:
            f = 1.0 / (1.0 + self._distances().to(torch.get_default_dtype()))
            f = f if self.distance else f[self._index]
            f = f.to(torch.get_default_device())
        f = torch.as_tensor(f).detach()
        f = f if f.is_floating_point() else f.to(torch.get_default_dtype())
        expected = self._levels.shape if self.distance else self._index.shape
        if f.shape not in (expected, (self.num_heads, *expected)):
            raise ValueError(
                f"`f` must have shape {list(expected)} or {[self.num_heads, *expected]}, one number per "
                f"{'distinct distance' if self.distance else 'offset'}, but has shape {tuple(f.shape)}."
            )
        if has_values(f) and not bool(f.isfinite().all()):
            raise ValueError("`f` must be finite, but has entries that are not.")
        if self.positive and has_values(f) and not bool((f > 0).all()):
            raise ValueError("`f` must be positive where positive=True. Pass positive=False for entries of any sign.")
        return (f.log() if self.positive else f).expand(self.num_heads, *expected).clone()

    @property
    def distances(self) -> Tensor:
        """The distinct distances in order, [K], where the mask is a function of distance."""
        if self.distance is None:
            raise ValueError("This mask has a parameter per offset. Pass `distance` for a function of distance.")
        return self._distances().to(torch.get_default_dtype())

    def _distances(self) -> Tensor:
        levels = self._levels.to(torch.float64)
        return levels.sqrt() if self.distance in (None, "l2") else levels

    def offset_values(self) -> Tensor:
        """The entries by offset, [H, 2X - 1, ...], that of (0, ..., 0) in the middle."""
        values = self.weight if self.f is None else self._apply_f(self.f)
        values = values.to(torch.promote_types(values.dtype, torch.float32))
        values = values.exp() if self.positive else values
        values = values[:, self._index] if self.distance else values
        return F.pad(values, (0, self.shape[0] - 1)) if self.causal else values

    def _apply_f(self, f: nn.Module) -> Tensor:
        """The values of f at all distances, [H, K]."""
        from topomask.masks.decay import ExponentialDecay

        dtype = next((x.dtype for x in f.parameters() if x.is_floating_point()), torch.get_default_dtype())
        if isinstance(f, ExponentialDecay):
            # It takes any precision; a module of one's own may take that of its parameters only.
            dtype = torch.promote_types(dtype, torch.float32)
        values = f(self._distances().to(self.kind[1], dtype)[:, None])
        if values.shape not in ((len(self._levels), 1), (len(self._levels), self.num_heads)):
            raise ValueError(
                f"`f` must map distances [{len(self._levels)}, 1] to [{len(self._levels)}, num_heads={self.num_heads}] "
                f"or [{len(self._levels)}, 1], but gave shape {tuple(values.shape)}."
            )
        return values.mT.expand(self.num_heads, -1)

    def on(self, graph: Graph | None = None, walks: Any = None) -> Operator:
        """The entries as an operator."""
        return self._without_graph(lambda: ToeplitzOperator(self, self.offset_values()), graph, walks)

    def _move(self) -> None:
        _, device = self.kind
        if device.type != "meta":
            self._levels, self._index = self._levels.to(device), self._index.to(device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self._move()
        return self

    def extra_repr(self) -> str:
        """Shown when the module is printed."""
        options: dict[str, Any] = {"distance": self.distance, "positive": self.positive, "causal": self.causal}
        shown = "".join(f", {name}={value!r}" for name, value in options.items() if value)
        return f"{self.shape}, num_heads={self.num_heads}{shown}"


class ToeplitzOperator(Operator):
    """A block Toeplitz matrix per head.

    Args:
        mask: The mask, with the shape of the grid.
        values: Entries by offset, [H, 2X - 1, ...], in at least float32.
    """

    def __init__(self, mask: ToeplitzMask, values: Tensor) -> None:
        super().__init__(mask, num_tokens=math.prod(mask.shape))
        self._values, self._shape, self._positive = values, mask.shape, mask.positive
        self._grid, self._padded_size = mask._grid, mask._padded_size

    def _spectrum(self, dtype: torch.dtype) -> Tensor:
        """The spectrum of the entries, in the precision that a product with this one has."""
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
        """Attention some columns at a time, from features to sums without leaving the cache."""
        spectrum = self._spectrum(v.dtype)
        q, k, values = (x.to(spectrum.dtype) for x in (phi_q, phi_k, v))
        return toeplitz.attend(spectrum, q, k, values, self._grid).to(v.dtype)

    def product_noise(self, x: Tensor) -> Tensor:
        r"""A bound on the rounding error of every entry of a product, [..., H, 1, C].

        .. math:: c\,\epsilon\,\log_2 P\;\lVert b \rVert_2\,\lVert x \rVert_2

        P is the padded size of the grid and c is 1 for log2 P + 1. A transform errs by at most a small multiple of
        :math:`\epsilon \log_2 P` of its result in the 2-norm (Higham, 2002, Thm. 24.2); by Parseval and Cauchy-Schwarz,
        the errors of the spectra of b and x reach an entry of the product with at most that times the two norms. The
        errors of the last transform spread evenly over its entries, whose root mean square the two norms bound too.
        Measured errors, on random and hostile inputs, stay below half of it for a few nodes and a fifth beyond.
        """
        # Accurate to the precision of the results, which half-precision inputs are cast to.
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
        # Windows slide forth over the offsets, and offsets fall with the query.
        rows = windows.flip(list(range(1, 1 + dims)))
        return rows.reshape(self.num_heads, self.num_queries, self.num_keys)

    def submatrix(self, query_nodes: Tensor | None, key_nodes: Tensor | None) -> Tensor:
        """The entries in these rows and columns, read off."""
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
        return self if self._positive else self._once("magnitude", self._absolute)

    def _absolute(self) -> ToeplitzOperator:
        return self._copy(_values=self._values.abs(), _positive=True)

    def cost(self) -> Cost:
        """Transforms of the padded grid, P log2 P per head, also for the spectrum; dense entries are read off."""
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
    """The distinct distances, for ``"l2"`` their squares, [K], and which every offset has, [2X - 1, ...]."""
    offsets = np.meshgrid(*(np.abs(np.arange(1 - size, size)) for size in shape), indexing="ij", sparse=True)
    if distance == "linf":
        length = np.maximum.reduce(np.broadcast_arrays(*offsets))
    else:
        length = np.asarray(sum(x**2 if distance == "l2" else x for x in offsets))
    levels, index = np.unique(length[: shape[0]] if causal else length, return_inverse=True)
    index = index.reshape(-1) if causal else index.reshape(length.shape)
    return torch.from_numpy(levels), torch.from_numpy(index)
