"""Metrics over a data set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from topomask.train.config import Precision
from topomask.train.epochs import Epochs, batches_of, to_device
from topomask.train.processes import Processes
from topomask.train.tasks import Task


def evaluate(
    model: nn.Module,
    data: Epochs | Iterable[Any],
    task: Task,
    *,
    precision: Precision = "float32",
    processes: Processes | None = None,
) -> dict[str, float]:
    """The loss and the metrics of a task over a data set, every example counted alike.

    Args:
        model: The model; it is in evaluation mode meanwhile.
        data: Batches: an :class:`Epochs`, or any iterable of them.
        task: The task.
        precision: Precision of products.
        processes: The processes among which ``data`` is shared out. Default: this one alone.

    Returns:
        The mean of every metric, by name.

    Example:
        >>> from topomask.train import Regression
        >>> data = [(torch.ones(3, 1), torch.zeros(3, 1)), (torch.ones(1, 1), torch.ones(1, 1))]
        >>> evaluate(nn.Identity(), data, Regression())
        {'loss': 0.75, 'absolute_error': 0.75}
    """
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    sums: dict[str, float] = {}
    count = 0
    with torch.no_grad(), _evaluating(model):
        for batch in batches_of(data):
            size = task.size(batch)
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
                loss, metrics = task.loss(model, to_device(batch, device))
            for name, value in {"loss": loss, **metrics}.items():
                sums[name] = sums.get(name, 0.0) + float(value) * size
            count += size
    if processes is not None:
        sums, count = processes.add_up(sums, count)
    if not count:
        raise ValueError("`data` gives no batch, so there is nothing to evaluate.")
    return {name: value / count for name, value in sums.items()}


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
