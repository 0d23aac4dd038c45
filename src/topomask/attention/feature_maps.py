r"""Feature maps :math:`\phi` of linear attention.

A feature map is any function from [..., D] to [..., M]. If its values are exponentials, make it an
:class:`ExponentialMap`: attention then shifts the exponents to prevent overflow. If its values are never negative, give
it an attribute ``nonnegative = True``, which saves work.
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
from topomask.support.checks import check_choice

# Below this, exp(x) loses digits in float32.
_LOWEST_ELU = -80.0


class ExponentialMap(nn.Module, ABC):
    """A feature map exp(e(x)), defined by its exponents e(x).

    Attention subtracts the largest exponent of the keys of a graph from all of them. If a query only sees keys whose
    exponents are too far below it for float32, attention is computed in float64, which reaches 690 below. Inside
    ``torch.compile`` and on devices other than the CPU, where values are not inspected, keys from about 69 below count
    as 0.
    """

    nonnegative = True

    @abstractmethod
    def exponents(self, x: Tensor) -> Tensor:
        """Compute e(x), from [..., D] to [..., M]."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute exp(e(x)), without a shift."""
        return self.exponents(x).exp()


class Exp(ExponentialMap):
    """The exponential of every coordinate."""

    def exponents(self, x: Tensor) -> Tensor:
        """Return x unchanged."""
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
        """Compute the exponents of the formula above, the factor included."""
        return _softmax_exponents(x, self.projection)


def _softmax_exponents(x: Tensor, projection: Tensor) -> Tensor:
    num_features, dim = projection.shape
    x = x * dim**-0.25
    return x @ projection.to(x).mT - x.square().sum(dim=-1, keepdim=True) / 2 - math.log(num_features) / 2


def relu(x: Tensor) -> Tensor:
    """Compute max(x, 0), the paper's choice."""
    return F.relu(x)


def elu(x: Tensor) -> Tensor:
    """Exponential linear unit plus 1, computed so that it stays positive for very negative x."""
    # The branch that is not taken must not overflow, or its gradient of zero becomes NaN.
    return torch.where(x > 0, x + 1.0, x.clamp(max=0.0).exp())


def identity(x: Tensor) -> Tensor:
    """Return x unchanged; scores may be negative."""
    return x


@lru_cache(8)
def _draw_projection(dim: int) -> Tensor:
    with plainly(), torch.device("cpu"):
        return SoftmaxFeatures(dim).projection


@constant_when_compiled
def _default_projection(dim: int) -> Tensor:
    """The projections behind the name "softmax", the same in every call and cached per width."""
    projection, mode = _draw_projection(dim), fake_mode()
    return projection if mode is None else mode.from_tensor(projection)


class _DefaultSoftmax(ExponentialMap):
    """The feature map behind the name "softmax"."""

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
    """Return the feature map with a name, or a function unchanged."""
    if callable(feature_map):
        return feature_map
    check_choice("feature_map", feature_map, _NAMED, " or a function")
    return _NAMED[feature_map]


def is_named(feature_map: Callable[[Tensor], Tensor]) -> bool:
    """Whether this is a feature map of the library, which works in any precision."""
    return isinstance(feature_map, ExponentialMap) or feature_map in _NAMED.values()


def is_nonnegative(feature_map: Callable[[Tensor], Tensor]) -> bool:
    """Whether all values are known to be at least 0."""
    return feature_map in (relu, elu) or bool(getattr(feature_map, "nonnegative", False))


def underflows(feature_map: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Whether some features of x underflow in float32; exponential maps are shifted instead."""
    return feature_map is elu and bool(x.numel()) and bool(x.detach().amin() < _LOWEST_ELU)


def is_positive(feature_map: Callable[[Tensor], Tensor]) -> bool:
    """Whether all values are known to be above 0, so that a 0 has underflowed."""
    return feature_map is elu or isinstance(feature_map, ExponentialMap)


def _orthogonal_gaussian(num_rows: int, dim: int, generator: torch.Generator) -> Tensor:
    """Rows distributed as standard normal vectors, orthogonal within each block of ``dim`` rows."""
    blocks = math.ceil(num_rows / dim)
    bases, triangles = torch.linalg.qr(torch.randn(blocks, dim, dim, generator=generator, device="cpu"))
    # Without the signs, QR does not give uniformly distributed rotations.
    bases = bases * triangles.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    rows = bases.mT.reshape(blocks * dim, dim)[:num_rows]
    lengths = torch.randn(num_rows, dim, generator=generator, device="cpu").norm(dim=1)
    return rows * lengths[:, None]
