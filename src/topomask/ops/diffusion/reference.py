"""A series of Chebyshev polynomials of a sparse matrix, times a dense one; pure torch."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from topomask.ops.sparse_product import reference


def expand(row_ptr: Tensor, columns: Tensor, values: Tensor, coefficients: list[float], x: Tensor) -> Tensor:
    r"""Return :math:`\sum_k c_k T_k(B)\,x` for a sparse B [N, N] with ``values`` [P] and x [N, C]."""
    return recur(lambda t: reference.spmm(row_ptr, columns, values[None], t[None])[0], coefficients, x)


def recur(multiply: Callable[[Tensor], Tensor], coefficients: list[float], x: Tensor) -> Tensor:
    """Sum a Chebyshev series by its recurrence, which keeps three vectors in memory."""
    out = coefficients[0] * x
    if len(coefficients) == 1:
        return out
    previous, current = x, multiply(x)
    out.add_(current, alpha=coefficients[1])
    for coefficient in coefficients[2:]:
        previous, current = current, multiply(current).mul_(2.0).sub_(previous)
        out.add_(current, alpha=coefficient)
    return out
