"""A training step: the optimiser, the learning rate, the step itself, and errors that locate NaN and infinity."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from topomask.masks import Mask
from topomask.train.config import OptimConfig, Precision
from topomask.train.processes import Processes
from topomask.train.tasks import Task, tensors_in, to_device

_Key = TypeVar("_Key", int, str)


def learning_rate(config: OptimConfig, step: int, total: int) -> float:
    r"""Return the learning rate of a step: linear warm-up, constant, cosine decay.

    With w warm-up steps and d decay steps out of T, step s (from 0) has learning rate

    .. math::
        \eta_s = \begin{cases} \eta\,(s + 1) / w & s < w \\ \eta & w \le s < T - d \\
        \eta_T + \tfrac12 (\eta - \eta_T) (1 + \cos \pi\,\tfrac{s + 1 - (T - d)}{d}) & s \ge T - d \end{cases}

    Args:
        config: The schedule.
        step: The step, counted from 0.
        total: Total number of steps.

    Example:
        >>> config = OptimConfig(lr=1.0, final_lr=0.0, warmup=0.4, decay=0.4)
        >>> [round(learning_rate(config, step, 10), 2) for step in range(10)]
        [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 0.85, 0.5, 0.15, 0.0]

    References:
        Reid et al. (2025), Table 2.
    """
    warm = round(config.warmup * total)
    if step < warm:
        return config.lr * (step + 1) / warm
    falling = min(round(config.decay * total), total - warm)
    late = step + 1 - (total - falling)
    if late <= 0:
        return config.lr
    return config.final_lr + (config.lr - config.final_lr) * (1 + math.cos(math.pi * late / falling)) / 2


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """Build Adam or AdamW; weight decay applies only to matrices that do not belong to a mask."""
    in_masks = {id(p) for module in model.modules() if isinstance(module, Mask) for p in module.parameters()}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise ValueError("The model has no parameter that requires a gradient, so there is nothing to train.")
    decaying = [p for p in trained if p.ndim >= 2 and id(p) not in in_masks]
    others = [p for p in trained if p.ndim < 2 or id(p) in in_masks]
    groups = ((decaying, config.weight_decay), (others, 0.0))
    return (torch.optim.AdamW if config.name == "adamw" else torch.optim.Adam)(
        [{"params": params, "weight_decay": decay} for params, decay in groups if params],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        # One kernel for all parameters: otherwise small models spend a tenth of a step in the optimiser's loop.
        fused=all(parameter.is_floating_point() for parameter in trained),
    )


class Stepper:
    """Takes optimiser steps with a model that is not wrapped; ``clip`` bounds the norm of the gradient."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        task: Task,
        processes: Processes,
        precision: Precision = "float32",
        clip: float | None = None,
    ) -> None:
        self.model, self.optimizer, self.task, self.processes = model, optimizer, task, processes
        self.precision, self.clip = precision, math.inf if clip is None else clip
        self.wrapped = processes.wrap(model)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def step(self, batch: Any, lr: float) -> tuple[dict[str, float], int]:
        """Take one step on this process's part of a batch.

        Returns:
            The mean loss, metrics and gradient norm over the examples of all processes, and the number of examples.
        """
        own = self.task.size(batch)
        if not own:
            raise ValueError("A batch has no examples. Drop the last batch of an epoch if it is too small to share.")
        self.model.train()
        device = self.processes.device
        batch = to_device(batch, device)
        loss, metrics = self._forward(self.wrapped, batch)
        values = torch.stack([torch.as_tensor(x).detach().double().to(device) for x in (loss, *metrics.values())])
        size, *sums = self.processes.reduce(torch.cat([values.new_ones(1), values]) * own).tolist()
        # Gradients are averaged over processes, so weight each process by its share of the examples.
        share = own * self.processes.world_size / size
        self.optimizer.zero_grad()
        (loss if share == 1 else loss * share).backward()
        norm = nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        means = {name: total / size for name, total in zip(("loss", *metrics), sums, strict=True)}
        means["grad_norm"] = float(norm)
        if not (math.isfinite(means["loss"]) and math.isfinite(means["grad_norm"])):
            fault = explain_fault(self.model, batch, lambda: self._forward(self.model, batch))
            raise NonFiniteError(f"the loss is {means['loss']}, and {fault}")
        if means["grad_norm"] > self.clip:
            nn.utils.clip_grads_with_norm_(self.parameters, self.clip, norm)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        return means, round(size)

    def _forward(self, model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        with torch.autocast(self.processes.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            return self.task.loss(model, batch)


class NonFiniteError(ArithmeticError):
    """The loss, a gradient or a weight is NaN or infinite."""


def faulty_weights(model: nn.Module) -> str | None:
    """Describe the first parameter with NaN or infinite values; None if all are finite."""
    name = _first_nonfinite(model.named_parameters())
    return None if name is None else f"the first weights that are not finite are those of `{name}`"


def explain_fault(model: nn.Module, batch: Any, forward: Callable[[], object]) -> str:
    """Describe where the first NaN or infinite numbers of a failed step come from.

    The model has the gradients of that step; ``forward`` computes its loss again, to check the output of every layer.
    """
    fault = faulty_weights(model) or _faulty_input(batch) or _faulty_layer(model, forward)
    if fault is not None:
        return fault
    name = _first_nonfinite((name, p.grad) for name, p in model.named_parameters() if p.grad is not None)
    if name is not None:
        return f"the first gradient that is not finite is that of `{name}`"
    return "weights, batch and the outputs of all layers are finite here, so the fault is in the loss itself"


def _faulty_input(batch: Any) -> str | None:
    tensors = list(tensors_in(batch))
    place = _first_nonfinite(enumerate(tensors))
    if place is None:
        return None
    rows = tensors[place].reshape(len(tensors[place]) if tensors[place].ndim else 1, -1)
    example = int((~rows.isfinite()).any(dim=1).nonzero()[0])
    return f"tensor {place} of the batch has values that are not finite, first in example {example}"


def _faulty_layer(model: nn.Module, forward: Callable[[], object]) -> str | None:
    """Describe the first layer with non-finite output. Dropout draws again, so the fault may not reappear."""
    found: list[str] = []

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_layer: nn.Module, _inputs: Any, output: Any) -> None:
            if not found and _first_nonfinite(enumerate(tensors_in(output))) is not None:
                found.append(name)

        return hook

    handles = [layer.register_forward_hook(watch(name)) for name, layer in model.named_modules()]
    try:
        with torch.no_grad():
            forward()
    finally:
        for handle in handles:
            handle.remove()
    return f"the first output that is not finite is that of layer `{found[0] or 'model'}`" if found else None


def _first_nonfinite(tensors: Iterable[tuple[_Key, Tensor]]) -> _Key | None:
    """The key of the first tensor that has a NaN or infinite value."""
    for key, tensor in tensors:
        if (tensor.is_floating_point() or tensor.is_complex()) and not tensor.isfinite().all():
            return key
    return None
