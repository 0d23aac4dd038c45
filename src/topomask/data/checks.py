"""Checks of features and class labels that users pass in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def class_numbers(y: Any, count: int, what: str) -> Tensor:
    """Convert PyG's ``y`` (a tensor, an array or a number) to `count` class labels, int64, [count]."""
    y = torch.as_tensor(y)
    if y.numel() != count:
        raise ValueError(f"{what} must hold {count} class label{'s' * (count > 1)}, but has shape {tuple(y.shape)}.")
    if y.is_floating_point() or y.is_complex():
        raise ValueError(f"{what} must hold integers, classes from 0, but has dtype {y.dtype}. Pass y.long().")
    return y.reshape(-1).to(torch.int64)


def check_labels(labels: Tensor, num_classes: int, owner: str, used: Tensor | None = None) -> None:
    """Raise a ValueError unless `labels`, [N], are integers in [0, num_classes), if `used` is true there."""
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(f"`labels` must be integers, classes from 0, but have dtype {labels.dtype}.")
    wrong = (labels < 0) | (labels >= num_classes)
    if used is not None:
        wrong &= used
    if wrong.any():
        place = int(wrong.nonzero()[0])
        fix = "" if used is None else " If its class is unknown, remove it from all splits."
        raise ValueError(
            f"`labels` must be classes in [0, {num_classes}), but the label of {owner} {place} is "
            f"{int(labels[place])}.{fix}"
        )


def check_finite(x: Tensor, what: str) -> None:
    """Raise a ValueError that names the first node whose features, [N, F], are not finite."""
    if not bool(x.isfinite().all()):
        node = int((~x.isfinite()).any(dim=1).nonzero()[0])
        raise ValueError(f"{what} must be finite, but node {node} has NaN or inf. Remove or replace these values.")
