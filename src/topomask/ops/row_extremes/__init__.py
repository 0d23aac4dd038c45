"""Whether numbers are so large or so small that products of them need a scale."""

from __future__ import annotations

from torch import Tensor

from topomask.ops.backend import implementation


def any_extreme(x: Tensor, bound: float) -> bool:
    """Whether the largest absolute number of some row [..., D] is above ``bound``, or below its inverse but not 0."""
    return implementation(__name__, x).any_extreme(x, bound)
