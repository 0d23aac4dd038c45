"""The action of a matrix exponential by a Chebyshev series."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from topomask.ops.backend import implementation
from topomask.ops.diffusion import series
from topomask.ops.diffusion.spectrum import bound_spectral_radius
from topomask.ops.registration import Op, check_shape
from topomask.ops.sparse_product import Pattern, spmm

__all__ = ["bound_spectral_radius", "count_terms", "diffuse"]

# The largest exponential that is computed is exp(80): float32 overflows at exp(88.7), and sums need some headroom.
MAX_EXPONENT = 80.0


def count_terms(time: float, radius: float, tolerance: float) -> int:
    """Return how many terms of the series an action needs."""
    return series.count_terms(time * radius, tolerance)


def _check_time(time: float, head: int, radius: float, growth: float, tolerance: float) -> None:
    """Raise a ValueError unless the action for this time can be computed."""
    if not math.isfinite(time) or time < 0:
        raise ValueError(f"`time` must be finite and >= 0, but is {time} in head {head}. Lower the learning rate.")
    if time * growth > MAX_EXPONENT:
        raise ValueError(
            f"exp(-time T) may be as large as exp({time * growth:.4g}), and products beyond exp({MAX_EXPONENT:.4g}) "
            f"may not be finite: `time` is {time:.4g} in head {head}, and the eigenvalues of T reach down to "
            f"{-growth:.4g}. Keep `time` below {MAX_EXPONENT / growth:.4g}, or use a Laplacian, whose exponential "
            "stays below 1."
        )
    if count_terms(time, radius, tolerance) > series.MAX_TERMS:
        raise ValueError(
            f"`time` is {time:.4g} in head {head} and the eigenvalues of T span {2 * radius:.4g}, so a product would "
            f"need more than {series.MAX_TERMS} steps. Keep `time` smaller, raise `tolerance`, or use "
            "operator='normalized_laplacian', whose eigenvalues span at most 2."
        )


class _Diffusion(NamedTuple):
    pattern: Pattern
    values: Tensor  # [P]
    times: Tensor  # [H]
    x: Tensor  # [H, N, C]
    bounds: Tensor  # [2], radius and growth
    tolerance: float

    def check(self) -> None:
        """Raise a ValueError unless shapes match."""
        num_nodes = len(self.pattern.row_ptr) - 1
        check_shape("column_ptr", self.pattern.column_ptr, num_nodes + 1)
        check_shape("values", self.values, len(self.pattern.columns))
        check_shape("times", self.times, len(self.x))
        check_shape("x", self.x, None, num_nodes, None)


def _forward(diffusion: _Diffusion) -> Tensor:
    pattern, values, times, x, bounds, tolerance = diffusion
    radius, growth = bounds.tolist()
    backend, out = implementation(__name__, x), []
    # The number of terms depends on the values of the times, which are known here even inside a compiled graph.
    for head, time in enumerate(times.tolist()):
        _check_time(time, head, radius, growth, tolerance)
        terms = series.coefficients(time * radius, count_terms(time, radius, tolerance))
        out.append(backend.expand(pattern.row_ptr, pattern.columns, values, terms.tolist(), x[head].contiguous()))
    return out[0][None] if len(out) == 1 else torch.stack(out)


def _backward(
    diffusion: _Diffusion, outputs: tuple[Tensor, ...], grad: Tensor, wanted: Collection[str]
) -> dict[str, Tensor]:
    """Compute gradients from the output: its derivative with respect to time is -T times the output."""
    (y,), grads = outputs, {}
    if "times" in wanted:
        num_heads, num_nodes, width = y.shape
        joined = y.transpose(0, 1).reshape(num_nodes, num_heads * width)
        product = spmm(diffusion.pattern, diffusion.values, joined)
        product = product.reshape(num_nodes, num_heads, width).transpose(0, 1)
        slope = -(grad * (y + product)).sum(dim=(1, 2)) * diffusion.bounds[0]
        grads["times"] = slope.to(diffusion.times.dtype)
    if "x" in wanted:
        grads["x"] = _diffuse(diffusion._replace(x=grad))
    return grads


_diffuse = Op(
    "diffuse",
    _Diffusion,
    _forward,
    lambda diffusion: diffusion.x.new_empty(diffusion.x.shape),
    gradients=("times", "x"),
    backward=_backward,
    shapes_only=("x",),
    reads_result=True,
)


def diffuse(pattern: Pattern, values: Tensor, times: Tensor, x: Tensor, bounds: Tensor, tolerance: float) -> Tensor:
    r"""Return :math:`e^{-tT} x` per head, for a symmetric :math:`T = r (I + B)`; differentiable in the times and in x.

    Args:
        pattern: Pattern of B, [N, N].
        values: Entries of B, [P]. The eigenvalues of B must lie in [-1, 1].
        times: :math:`t \ge 0`, [H].
        x: [H, N, C], in the dtype of ``values``.
        bounds: r and the growth, [2], on the CPU: a tensor, since numbers would tie compiled code to one graph. If the
            growth times a time is so large an exponent that later steps may overflow, a ValueError is raised.
        tolerance: Largest error of the truncated series, relative to :math:`\lVert x \rVert_2`.
    """
    return _diffuse(_Diffusion(pattern, values, times, x, bounds, tolerance))
