"""Problems of attention whose work is counted."""

import topomask as tm
from topomask.attention.plan import Kernel, Problem


def problem(mask: tm.Mask, num_features: int, value_dim: int, times: int = 1, kernel: Kernel = "linear") -> Problem:
    """Attention with a mask on its own graph."""
    return Problem.of(mask.on(), num_features, value_dim, times, None, kernel=kernel)
