"""Whether rows have extreme numbers, compiled: one pass that stores nothing."""

from __future__ import annotations

import numpy as np
from numba import prange
from torch import Tensor

from topomask.ops.backend import Kernel, arrays

_NUM_BLOCKS = 16


def _any_extreme(x, bound, found):
    """Mark blocks of rows in which some row is extreme."""
    rows, width = x.shape
    blocks = found.shape[0]
    for block in prange(blocks):
        for i in range(block * rows // blocks, (block + 1) * rows // blocks):
            largest = x.dtype.type(0)
            for a in range(width):
                largest = max(largest, abs(x[i, a]))
            if largest > bound or (largest < 1.0 / bound and largest > 0):
                found[block] = True


# Not fastmath: infinities count.
_kernel = Kernel(_any_extreme)


def any_extreme(x: Tensor, bound: float) -> bool:
    """Whether the largest absolute number of some row [..., D] is above ``bound``, or below its inverse but not 0."""
    if not x.numel():
        return False
    found = np.zeros(_NUM_BLOCKS, np.bool_)
    _kernel(*arrays(x.reshape(-1, x.shape[-1])), bound, found)
    return bool(found.any())
