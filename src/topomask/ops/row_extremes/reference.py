"""Whether rows have extreme numbers; pure torch."""

from __future__ import annotations

from torch import Tensor


def any_extreme(x: Tensor, bound: float) -> bool:
    """Whether the largest absolute value of any row [..., D] is above ``bound``, or below its inverse but not 0."""
    if not x.numel():
        return False
    largest = x.detach().abs().amax(dim=-1)
    return bool(((largest > bound) | ((largest < 1.0 / bound) & (largest > 0))).any())
