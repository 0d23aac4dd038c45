"""Classes as numbers, as PyG has them."""

from __future__ import annotations

import torch
from torch import Tensor


def class_numbers(y: Tensor, count: int, what: str) -> Tensor:
    """One class each, integers from 0, [count]; or a ValueError that names what is wrong.

    Args:
        y: PyG's ``y``.
        count: How many there must be.
        what: What it is, for the error.

    Example:
        >>> class_numbers(torch.tensor([[2], [0]]), 2, "`y`")
        tensor([2, 0])
    """
    if y.numel() != count:
        raise ValueError(f"{what} must be {count} class{'es' if count > 1 else ''}, but has shape {tuple(y.shape)}.")
    if y.is_floating_point() or y.is_complex():
        raise ValueError(f"{what} must be integers, classes from 0, but is {y.dtype}. Turn classes with .long().")
    if y.numel() and int(y.min()) < 0:
        raise ValueError(f"{what} must be classes from 0, but holds {int(y.min())}.")
    return y.reshape(-1).to(torch.int64)
