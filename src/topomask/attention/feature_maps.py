r"""Feature maps :math:`\phi` of linear attention.

A feature map is any function from [..., D] to [..., M]. One whose values are exponentials may be an
:class:`ExponentialMap` instead: attention then shifts its exponents so that nothing overflows. One whose values are
never negative may say so with an attribute ``nonnegative = True``, which saves work.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from topomask.ops.derived import constant_when_compiled, plainly
from topomask.ops.registration import fake_mode

# Widths whose projections are kept: a model has one or two.
_MAX_PROJECTIONS = 8


class ExponentialMap(nn.Module, ABC):
    """A feature map exp(e(x)), given by its exponents.

    Attention takes the largest exponent of the keys of a graph out of all of them. Queries that only see keys whose
    exponents lie further below it than float32 can hold are computed in float64, up to 690 below. Inside
    ``torch.compile`` and on devices other than the CPU, where numbers are not looked at, keys count 0 from about 69
    below on.
    """

    nonnegative = True

    @abstractmethod
    def exponents(self, x: Tensor) -> Tensor:
        """e(x), [..., D] to [..., M]."""

    def forward(self, x: Tensor) -> Tensor:
        """exp(e(x)), without a shift."""
        return self.exponents(x).exp()


class Exp(ExponentialMap):
    """The exponential of every coordinate."""

    def exponents(self, x: Tensor) -> Tensor:
        """X itself."""
        return x


class SoftmaxFeatures(ExponentialMap):
    r"""Positive random features of the softmax kernel (FAVOR+) with orthogonal projections.

    .. math:: \phi(x)_a = \tfrac{1}{\sqrt M} \exp\big(w_a^\top x' - \|x'\|^2/2\big), \quad x' = x / D^{1/4}, \qquad
        \mathbb{E}\,\phi(q)^\top\phi(k) = \exp(q^\top k / \sqrt D)

    Args:
        dim: Width of queries and keys D.
        num_features: Number of features M. Default: D log D, rounded, and at least D.
        seed: Seed of the projections.

    Example:
        >>> SoftmaxFeatures(dim=4, num_features=8)(torch.zeros(2, 4)).shape
        torch.Size([2, 8])

    References:
        Choromanski et al. (2020), Rethinking attention with Performers.
    """

    projection: Tensor

    def __init__(self, dim: int, num_features: int | None = None, seed: int = 0) -> None:
        super().__init__()
        if num_features is None:
            num_features = max(dim, round(dim * math.log(dim)))
        generator = torch.Generator("cpu").manual_seed(seed)
        self.register_buffer("projection", _orthogonal_gaussian(num_features, dim, generator))

    def exponents(self, x: Tensor) -> Tensor:
        """Projections less half the squared norm, and the logarithm of the factor."""
        return _softmax_exponents(x, self.projection)


def _softmax_exponents(x: Tensor, projection: Tensor) -> Tensor:
    num_features, dim = projection.shape
    x = x * dim**-0.25
    return x @ projection.to(x).mT - x.square().sum(dim=-1, keepdim=True) / 2 - math.log(num_features) / 2


def relu(x: Tensor) -> Tensor:
    """max(x, 0), the paper's choice."""
    return F.relu(x)


def elu(x: Tensor) -> Tensor:
    """Exponential linear unit plus 1, written so that it stays positive for very negative x."""
    # The branch that is not taken must not overflow, or its zero gradient becomes NaN.
    return torch.where(x > 0, x + 1.0, x.clamp(max=0.0).exp())


def identity(x: Tensor) -> Tensor:
    """X itself; scores may be negative."""
    return x


# Below, exp(x) loses digits in float32.
_LOWEST_ELU = -80.0
# Values that are never negative, and those that are never 0 but for underflow.
_NONNEGATIVE, _POSITIVE = (relu, elu), (elu,)


@lru_cache(_MAX_PROJECTIONS)
def _draw_projection(dim: int) -> Tensor:
    with plainly(), torch.device("cpu"):
        return SoftmaxFeatures(dim).projection


@constant_when_compiled
def _default_projection(dim: int) -> Tensor:
    """The projections behind the name "softmax", the same for every call; those of the last widths are kept."""
    projection, mode = _draw_projection(dim), fake_mode()
    return projection if mode is None else mode.from_tensor(projection)


class _DefaultSoftmax(ExponentialMap):
    """What the name "softmax" stands for."""

    def exponents(self, x: Tensor) -> Tensor:
        return _softmax_exponents(x, _default_projection(x.shape[-1]))


_NAMED: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": relu,
    "elu": elu,
    "exp": Exp(),
    "softmax": _DefaultSoftmax(),
    "identity": identity,
}


def resolve(feature_map: str | Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The feature map of a name, or the function itself."""
    if callable(feature_map):
        return feature_map
    if feature_map not in _NAMED:
        raise ValueError(f"`feature_map` must be one of {tuple(_NAMED)} or a function, but is {feature_map!r}.")
    return _NAMED[feature_map]


def is_named(feature_map: Callable[[Tensor], Tensor]) -> bool:
    """Whether it is one of the library's own, which take any precision."""
    return isinstance(feature_map, ExponentialMap) or feature_map in _NAMED.values()


def is_nonnegative(feature_map: Callable[[Tensor], Tensor]) -> bool:
    """Whether all values are known to be at least 0."""
    return feature_map in _NONNEGATIVE or bool(getattr(feature_map, "nonnegative", False))


def underflows(feature_map: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Whether features of some numbers are too small for float32; those of exponential maps are scaled before."""
    return feature_map is elu and bool(x.numel()) and bool(x.detach().amin() < _LOWEST_ELU)


def is_positive(feature_map: Callable[[Tensor], Tensor]) -> bool:
    """Whether all values are known to be above 0, so that 0 stands for a number that is too small."""
    return feature_map in _POSITIVE or isinstance(feature_map, ExponentialMap)


def _orthogonal_gaussian(num_rows: int, dim: int, generator: torch.Generator) -> Tensor:
    """Rows with the law of standard normal vectors, orthogonal within every block of ``dim`` rows."""
    blocks = math.ceil(num_rows / dim)
    bases, triangles = torch.linalg.qr(torch.randn(blocks, dim, dim, generator=generator, device="cpu"))
    # Without the signs, QR does not give uniformly distributed rotations.
    bases = bases * triangles.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    rows = bases.mT.reshape(blocks * dim, dim)[:num_rows]
    lengths = torch.randn(num_rows, dim, generator=generator, device="cpu").norm(dim=1)
    return rows * lengths[:, None]
