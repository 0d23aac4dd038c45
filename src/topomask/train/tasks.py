"""What a model is trained to do: the loss of a batch, and what is reported of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from topomask.train.epochs import tensors_in


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
        for tensor in tensors_in(batch):
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
        logits = in_full(model(inputs))  # [B, classes]
        return self.judge(logits, labels, model.training)

    def judge(self, logits: Tensor, labels: Tensor, training: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross entropy and accuracy of logits [B, classes]."""
        smoothing = self.label_smoothing if training else 0.0
        loss = F.cross_entropy(logits, labels, label_smoothing=smoothing)
        return loss, {"accuracy": accuracy(logits, labels)}


class ParticleMotion(Task):
    r"""Follows particles step by step: batches of :class:`topomask.data.ParticleSet`.

    A model maps positions and features to those of the next frame, and goes on from its own answer. The loss is the
    mean over the steps of

    .. math:: |\hat p - p|^2 / s^2 + |\hat x - x|^2, \qquad \text{averaged over particles and axes,}

    and ``error_1``, ``error_6`` are the mean distances, in metres, after one step and after the last of six.

    Args:
        position_scale: s, the distance that weighs as much as one unit of a feature; at 30 frames a second 1/30 makes
            an error of position weigh as the velocity that causes it in one step.

    Example:
        >>> class Still(nn.Module):
        ...     def forward(self, positions, features):
        ...         return positions, features
        >>> batch = torch.zeros(2, 5, 3), torch.zeros(2, 5, 6), torch.ones(2, 4, 5, 3), torch.zeros(2, 4, 5, 6)
        >>> ParticleMotion().loss(Still(), batch)[1]
        {'error_1': tensor(1.7321), 'error_4': tensor(1.7321)}
    """

    def __init__(self, position_scale: float = 1 / 30) -> None:
        if not position_scale > 0:
            raise ValueError(f"`position_scale` must be positive, but is {position_scale}.")
        self.position_scale = position_scale

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean square error over all steps, and mean distances after the first and the last."""
        positions, features, next_positions, next_features = batch
        horizon = next_positions.shape[1]
        total, metrics = positions.new_zeros(()), {}
        for step in range(horizon):
            positions, features = (in_full(part) for part in model(positions, features))
            off = positions - next_positions[:, step]  # [B, N, 3]
            total = total + off.square().mean() / self.position_scale**2
            total = total + F.mse_loss(features, next_features[:, step])
            if step in (0, horizon - 1):
                metrics[f"error_{step + 1}"] = off.detach().norm(dim=-1).mean()
        return total / horizon, metrics


class Regression(Task):
    """Mean square error of batches (inputs, targets), and mean absolute error."""

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean square and mean absolute error."""
        inputs, targets = batch
        predicted = in_full(model(inputs))
        if predicted.shape != targets.shape:
            raise ValueError(
                f"The model gives {tuple(predicted.shape)} where targets have shape {tuple(targets.shape)}. "
                "Give both the same shape, so that nothing is broadcast."
            )
        return F.mse_loss(predicted, targets), {"absolute_error": F.l1_loss(predicted.detach(), targets)}


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """The share of examples whose class has the largest logit."""
    return (logits.detach().argmax(dim=-1) == labels).float().mean()


def in_full(x: Tensor) -> Tensor:
    """In float32 at least: under autocast a model may answer in half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
