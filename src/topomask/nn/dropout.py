"""Dropout that takes half the time of torch's on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def drop(x: Tensor, p: float, training: bool = True) -> Tensor:
    r"""Set elements to 0 with probability p, and scale the others by :math:`1 / (1 - p)`.

    On the CPU, torch draws 53 bits per element, one by one, which takes 10 to 20 % of a training step of a small graph
    transformer. This function draws 24 bits, vectorised. Other devices and compiled models use torch's dropout.

    Args:
        x: Any tensor.
        p: Probability of dropping an element, in [0, 1].
        training: If False, x is returned unchanged.

    Example:
        >>> drop(torch.ones(3), 0.5, training=False)
        tensor([1., 1., 1.])
    """
    if not training or not 0 < p < 1 or x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p, training)
    weights = torch.rand(x.shape, dtype=torch.float32, device="cpu").ge_(p).div_(1 - p)
    return x * weights.to(x.dtype)


class Dropout(nn.Dropout):
    """:func:`drop` as a module."""

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements in training."""
        return drop(x, self.p, self.training)
