"""Whether rows have extreme numbers, compiled: one pass that stores nothing.

Works on bit patterns: without the sign bit they compare like the numbers, and loops over integers are vectorised.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from topomask.ops.backend import BlockKernel, arrays

_NUM_BLOCKS = 16
_INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}


def _any_extreme(start_block, stop_block, patterns, magnitude, low, high, found):
    """Mark blocks of rows in which the largest pattern is above ``high``, or below ``low`` but not 0."""
    rows, width = patterns.shape
    for block in range(start_block, stop_block):
        for i in range(block * rows // _NUM_BLOCKS, (block + 1) * rows // _NUM_BLOCKS):
            largest = patterns.dtype.type(0)
            for a in range(width):
                largest = max(largest, patterns[i, a] & magnitude)
            if largest > high or (largest < low and largest > 0):
                found[block] = True


_kernel = BlockKernel(_any_extreme)


def any_extreme(x: Tensor, bound: float) -> bool:
    """Whether the largest absolute value of any row [..., D] is above ``bound``, or below its inverse but not 0."""
    if not x.numel():
        return False
    kind = _INTEGERS[x.dtype]
    low, high = torch.tensor([1.0 / bound, bound], dtype=x.dtype, device="cpu").view(kind).numpy()
    magnitude = low.dtype.type(torch.iinfo(kind).max)
    found = np.zeros(_NUM_BLOCKS, np.bool_)
    (patterns,) = arrays(x.detach().reshape(-1, x.shape[-1]).contiguous().view(kind))
    _kernel(_NUM_BLOCKS, patterns, magnitude, low, high, found)
    return bool(found.any())
