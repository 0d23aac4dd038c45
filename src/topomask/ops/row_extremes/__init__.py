"""Whether numbers are so large or so small that products of them need rescaling."""

from __future__ import annotations

from torch import Tensor

from topomask.ops.backend import implementation


def any_extreme(x: Tensor, bound: float) -> bool:
    """Whether the largest absolute value of any row [..., D] is above ``bound``, or below its inverse but not 0."""
    return implementation(__name__, x).any_extreme(x, bound)
