"""Problems of attention whose work is counted."""

import topomask as tm
from topomask.attention.plan import Kernel, Problem


def problem(mask: tm.Mask, num_features: int, value_dim: int, times: int = 1, kernel: Kernel = "linear") -> Problem:
    """Attention with a mask on its own graph."""
    operator = mask.on()
    return Problem(
        name=operator.name,
        cost=operator.cost(),
        is_all_ones=operator.is_all_ones,
        num_heads=operator.num_heads,
        num_queries=operator.num_queries,
        num_keys=operator.num_keys,
        num_features=num_features,
        value_dim=value_dim,
        times=times,
        strategy="auto",
        kernel=kernel,
        dropout=False,
    )
