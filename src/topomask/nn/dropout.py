"""Dropout in half of the time that torch's own takes on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def drop(x: Tensor, p: float, training: bool = True) -> Tensor:
    r"""Set numbers to 0 with probability p, and scale the others up by :math:`1 / (1 - p)`.

    On the CPU torch draws 53 bits for every number, one after the other, which is a tenth to a fifth of a training step
    of a small graph transformer. Here 24 bits are drawn in vectors. Other devices, and compiled models, have torch's.

    Args:
        x: Numbers.
        p: Probability to drop one, in [0, 1].
        training: Whether to drop any.

    Example:
        >>> drop(torch.ones(3), 0.5, training=False)
        tensor([1., 1., 1.])
    """
    if not training or not 0 < p < 1 or x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p, training)
    weights = torch.rand(x.shape, dtype=torch.float32, device="cpu").ge_(p).div_(1 - p)
    return x * weights.to(x.dtype)


class Dropout(nn.Dropout):
    """:func:`drop` as a module.

    Args:
        p: Probability to drop a number.
    """

    def __init__(self, p: float) -> None:
        super().__init__(p)

    def forward(self, x: Tensor) -> Tensor:
        """The numbers that are left, scaled up."""
        return drop(x, self.p, self.training)
