"""What a model is trained to do: the loss of a batch, and what is reported of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Task(ABC):
    """A loss and its metrics.

    Attributes:
        monitor: The metric of evaluation by which the best checkpoint is chosen.
        higher_is_better: Whether a larger value of it is better.
    """

    monitor: str = "loss"
    higher_is_better: bool = False

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss to minimise, and metrics; all are means over the examples of the batch.

        Call the model itself, not its methods: under ``torchrun`` it is wrapped.
        """

    def size(self, batch: Any) -> int:
        """Examples in a batch. Default: the length of its first tensor."""
        for tensor in _tensors(batch):
            return len(tensor)
        raise ValueError(
            f"A batch of type {type(batch).__name__} holds no tensor. Override {type(self).__name__}.size."
        )


class Classification(Task):
    """Cross entropy of batches (inputs, labels), and accuracy.

    Args:
        label_smoothing: Probability spread over all classes, while the model trains.

    Example:
        >>> batch = torch.eye(3), torch.tensor([0, 1, 0])
        >>> loss, metrics = Classification().loss(nn.Identity(), batch)
        >>> metrics["accuracy"]
        tensor(0.6667)
    """

    monitor = "accuracy"
    higher_is_better = True

    def __init__(self, label_smoothing: float = 0.0) -> None:
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"`label_smoothing` must lie in [0, 1), but is {label_smoothing}.")
        self.label_smoothing = label_smoothing

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross entropy and accuracy."""
        inputs, labels = batch
        logits = _in_full(model(inputs))  # [B, classes]
        smoothing = self.label_smoothing if model.training else 0.0
        accuracy = (logits.detach().argmax(dim=-1) == labels).float().mean()
        return F.cross_entropy(logits, labels, label_smoothing=smoothing), {"accuracy": accuracy}


class Regression(Task):
    """Mean square error of batches (inputs, targets), and mean absolute error."""

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean square and mean absolute error."""
        inputs, targets = batch
        predicted = _in_full(model(inputs))
        if predicted.shape != targets.shape:
            raise ValueError(
                f"The model gives {tuple(predicted.shape)} where targets have shape {tuple(targets.shape)}. "
                "Give both the same shape, so that nothing is broadcast."
            )
        return F.mse_loss(predicted, targets), {"absolute_error": F.l1_loss(predicted.detach(), targets)}


def _in_full(x: Tensor) -> Tensor:
    """In float32 at least: under autocast a model may answer in half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping | tuple | list):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _tensors(part)
