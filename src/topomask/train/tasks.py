"""Tasks: batches, the loss and metrics of a batch, and evaluation on a data set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from topomask.support.checks import check_probabilities
from topomask.train.config import Precision
from topomask.train.processes import Processes


@runtime_checkable
class Epochs(Protocol):
    """Batches whose order depends only on the seed and the epoch, so that a run can resume from any step.

    Any object with these methods works. Under ``torchrun`` it also needs ``shard(rank, world_size)``, which returns the
    same kind of object with one process's part of every batch. In training, all parts must have the same number of
    batches, none of them empty.
    """

    def __len__(self) -> int:
        """Number of batches per epoch."""

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[Any]:
        """The batches of an epoch without the first ``skip``; the same on every call."""


def batches_of(data: Epochs | Iterable[Any], epoch: int = 0, skip: int = 0) -> Iterator[Any]:
    """The batches of an epoch; a plain list has the same batches in every epoch."""
    return data.epoch(epoch, skip) if isinstance(data, Epochs) else islice(data, skip, None)


def to_device(batch: Any, device: torch.device) -> Any:
    """Move a batch to a device: tensors, other objects with a method ``to``, and tuples, lists and dicts of them."""
    if isinstance(batch, Mapping):
        return {name: to_device(part, device) for name, part in batch.items()}
    if isinstance(batch, tuple | list):
        parts = (to_device(part, device) for part in batch)
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch.to(device) if hasattr(batch, "to") else batch


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """Iterate over the tensors in nested tuples, lists and dicts."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping | tuple | list):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from tensors_in(part)


class Task(ABC):
    """A loss and its metrics.

    Attributes:
        monitor: The evaluation metric that selects the best checkpoint.
        higher_is_better: Whether higher values of this metric are better.
    """

    monitor: str = "loss"
    higher_is_better: bool = False

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss to minimise and the metrics, all as means over the examples of the batch.

        Call the model itself, not its methods: under ``torchrun`` it is wrapped.
        """

    def size(self, batch: Any) -> int:
        """Number of examples in a batch. Default: the length of its first tensor."""
        for tensor in tensors_in(batch):
            return len(tensor)
        raise ValueError(
            f"A batch of type {type(batch).__name__} contains no tensor. Override {type(self).__name__}.size."
        )


class Classification(Task):
    """Cross entropy and accuracy of batches (inputs, labels).

    Args:
        label_smoothing: Probability spread evenly over all classes, in training only.

    Example:
        >>> batch = torch.eye(3), torch.tensor([0, 1, 0])
        >>> loss, metrics = Classification().loss(nn.Identity(), batch)
        >>> metrics["accuracy"]
        tensor(0.6667)
    """

    monitor = "accuracy"
    higher_is_better = True

    def __init__(self, label_smoothing: float = 0.0) -> None:
        check_probabilities(label_smoothing=label_smoothing)
        self.label_smoothing = label_smoothing

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross entropy and accuracy."""
        inputs, labels = batch
        logits = in_full(model(inputs))  # [B, classes]
        return self.judge(logits, labels, model.training)

    def judge(self, logits: Tensor, labels: Tensor, training: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross entropy and accuracy of logits [B, classes]."""
        smoothing = self.label_smoothing if training else 0.0
        return cross_entropy(logits, labels, smoothing), {"accuracy": accuracy(logits, labels)}


class ParticleMotion(Task):
    r"""Predicts the motion of particles step by step, on batches of :class:`topomask.data.ParticleSet`.

    The model maps positions and features to those of the next frame, and continues from its own prediction. The loss is
    the mean over the steps of

    .. math:: |\hat p - p|^2 / s^2 + |\hat x - x|^2, \qquad \text{averaged over particles and axes,}

    and ``error_1``, ``error_6`` are the mean distances, in metres, after one step and after the last of six.

    Args:
        position_scale: s, the distance that counts as much as one unit of a feature. At 30 frames per second, 1/30
            gives a position error the weight of the velocity error that causes it in one step.

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
        """Mean square error over all steps, and mean distances after the first and the last."""
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
    """Mean square error and mean absolute error of batches (inputs, targets)."""

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean square and mean absolute error."""
        inputs, targets = batch
        predicted = in_full(model(inputs))
        if predicted.shape != targets.shape:
            raise ValueError(
                f"The model's output must have the shape of the targets, {tuple(targets.shape)}, but has shape "
                f"{tuple(predicted.shape)}. Use the same shape for both, so that nothing is broadcast."
            )
        return F.mse_loss(predicted, targets), {"absolute_error": F.l1_loss(predicted.detach(), targets)}


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross entropy of logits [B, classes]; labels that are no class are named."""
    try:
        return F.cross_entropy(logits, labels, label_smoothing=smoothing)
    except IndexError:
        raise ValueError(
            f"`labels` must be classes in [0, {logits.shape[-1]}), the outputs of the model, but lie between "
            f"{int(labels.min())} and {int(labels.max())}. Build the model with more classes, or number them from 0."
        ) from None


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """The fraction of examples whose class has the largest logit."""
    return (logits.detach().argmax(dim=-1) == labels).float().mean()


def in_full(x: Tensor) -> Tensor:
    """Convert to at least float32: under autocast, outputs may have half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def evaluate(
    model: nn.Module,
    data: Epochs | Iterable[Any],
    task: Task,
    *,
    precision: Precision = "float32",
    processes: Processes | None = None,
) -> dict[str, float]:
    """Compute the loss and metrics of a task on a data set, as means over all examples.

    Args:
        model: The model; switched to evaluation mode during the call.
        data: Batches: an :class:`Epochs`, or any iterable.
        task: The task.
        precision: Precision of products.
        processes: The processes that share ``data``. Default: only this one.

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
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            for batch in batches_of(data):
                size = task.size(batch)
                with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
                    loss, metrics = task.loss(model, to_device(batch, device))
                for name, value in {"loss": loss, **metrics}.items():
                    sums[name] = sums.get(name, 0.0) + float(value) * size
                count += size
    finally:
        for module in training:
            module.training = True
    if processes is not None:
        sums, count = processes.add_up(sums, count)
    if not count:
        raise ValueError("`data` has no batches, so there is nothing to evaluate.")
    return {name: value / count for name, value in sums.items()}
