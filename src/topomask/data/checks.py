"""Checks of features and classes that users bring."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def class_numbers(y: Any, count: int, what: str) -> Tensor:
    """One integer each, int64 of shape [count]; or a ValueError that names what is wrong.

    Args:
        y: PyG's ``y``: a tensor, an array or a number.
        count: How many there must be.
        what: What it is, for the error.

    Example:
        >>> class_numbers(torch.tensor([[2], [0]]), 2, "`y`")
        tensor([2, 0])
    """
    y = torch.as_tensor(y)
    if y.numel() != count:
        raise ValueError(f"{what} must be {count} class{'es' if count > 1 else ''}, but has shape {tuple(y.shape)}.")
    if y.is_floating_point() or y.is_complex():
        raise ValueError(f"{what} must be integers, classes from 0, but is {y.dtype}. Turn classes with .long().")
    return y.reshape(-1).to(torch.int64)


def check_labels(labels: Tensor, num_classes: int, owner: str, used: Tensor | None = None) -> None:
    """A ValueError unless labels are classes, integers from 0.

    Args:
        labels: Class of each, [N].
        num_classes: How many classes there are.
        owner: What has a label, for the error: ``"node"`` or ``"graph"``.
        used: Whose labels count, bool, [N]. Default: all.
    """
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(f"`labels` must be integers, classes from 0, but are {labels.dtype}.")
    wrong = (labels < 0) | (labels >= num_classes)
    if used is not None:
        wrong &= used
    if wrong.any():
        place = int(wrong.nonzero()[0])
        mend = "" if used is None else " Take it out of all splits if its class is not known."
        raise ValueError(
            f"`labels` must be integers in [0, {num_classes}), the classes, but that of {owner} {place} is "
            f"{int(labels[place])}.{mend}"
        )


def check_finite(x: Tensor, what: str) -> None:
    """A ValueError that names the first node whose features, [N, F], are not finite."""
    if not bool(x.isfinite().all()):
        node = int((~x.isfinite()).any(dim=1).nonzero()[0])
        raise ValueError(f"{what} must be finite, but those of node {node} are not. Mend them.")
