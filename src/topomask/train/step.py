"""One step of training: the optimiser, its learning rate, the step itself, and where numbers stop being finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from topomask.masks import Mask
from topomask.train.config import OptimConfig, Precision
from topomask.train.processes import Processes
from topomask.train.tasks import Task, tensors_in, to_device


def learning_rate(config: OptimConfig, step: int, total: int) -> float:
    r"""The learning rate of a step: linear warm-up, constant, cosine decay.

    With w steps of warm-up and d of decay out of T, step s from 0 on has

    .. math::
        \eta_s = \begin{cases} \eta\,(s + 1) / w & s < w \\ \eta & w \le s < T - d \\
        \eta_T + \tfrac12 (\eta - \eta_T) (1 + \cos \pi\,\tfrac{s + 1 - (T - d)}{d}) & s \ge T - d \end{cases}

    Args:
        config: The schedule.
        step: The step, from 0 on.
        total: Steps in all.

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
    """Adam or AdamW; only matrices that belong to no mask decay."""
    of_masks = {id(p) for module in model.modules() if isinstance(module, Mask) for p in module.parameters()}
    decaying: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            decays = parameter.ndim >= 2 and id(parameter) not in of_masks
            (decaying if decays else others).append(parameter)
    groups = [
        {"params": decaying, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    if not decaying + others:
        raise ValueError("The model has no parameter that requires a gradient, so there is nothing to train.")
    kind = torch.optim.AdamW if config.name == "adamw" else torch.optim.Adam
    # One kernel for all parameters: by default, small models spend a tenth of a step in the optimiser's loop.
    fused = all(parameter.is_floating_point() for parameter in decaying + others)
    return kind(
        [group for group in groups if group["params"]], lr=config.lr, betas=config.betas, eps=config.eps, fused=fused
    )


class Stepper:
    """Takes optimiser steps.

    Args:
        model: The model, without any wrapping.
        optimizer: Its optimiser.
        task: The task.
        processes: The processes of the run.
        precision: Precision of products.
        clip: Largest norm of the gradient, or None.
    """

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
        """One step.

        Args:
            batch: This process's part of the batch.
            lr: The learning rate.

        Returns:
            Means of loss, metrics and norm of the gradient over the examples of all processes, and their number.
        """
        own = self.task.size(batch)
        if not own:
            raise ValueError("A batch has no examples. Leave out the last of an epoch where it is too small to share.")
        self.model.train()
        device = self.processes.device
        batch = to_device(batch, device)
        loss, metrics = self._forward(self.wrapped, batch)
        values = torch.stack([torch.as_tensor(x).detach().double().to(device) for x in (loss, *metrics.values())])
        size, *sums = self.processes.reduce(torch.cat([values.new_ones(1), values]) * own).tolist()
        # Gradients are averaged over processes, so a process counts by its share of the examples.
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
    """A loss, a gradient or a weight that is not a finite number."""


def faulty_weights(model: nn.Module) -> str | None:
    """The first parameter whose values are not finite, in words; None where all are."""
    for name, parameter in model.named_parameters():
        if not _is_finite(parameter):
            return f"the first weights that are not finite are those of `{name}`"
    return None


def explain_fault(model: nn.Module, batch: Any, forward: Callable[[], object]) -> str:
    """Where the first numbers that are not finite come from, in words.

    Args:
        model: The model, with the gradients of the step that failed.
        batch: The batch of that step.
        forward: Computes the loss of that batch once more, to watch the layers.
    """
    return (
        faulty_weights(model)
        or _faulty_input(batch)
        or _faulty_layer(model, forward)
        or _faulty_gradient(model)
        or "weights, batch and outputs of all layers are finite here, so the loss itself is at fault"
    )


def _faulty_input(batch: Any) -> str | None:
    for place, tensor in enumerate(tensors_in(batch)):
        if not _is_finite(tensor):
            rows = tensor.reshape(len(tensor), -1) if tensor.ndim else tensor.reshape(1, 1)
            example = int((~rows.isfinite()).any(dim=1).nonzero()[0])
            return f"tensor {place} of the batch holds numbers that are not finite, first in its example {example}"
    return None


def _faulty_layer(model: nn.Module, forward: Callable[[], object]) -> str | None:
    """The first layer with an output that is not finite. Dropout draws anew, so that it may not show again."""
    found: list[str] = []

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_layer: nn.Module, _inputs: Any, output: Any) -> None:
            if not found and not all(_is_finite(tensor) for tensor in tensors_in(output)):
                found.append(name)

        return hook

    handles = [layer.register_forward_hook(watch(name)) for name, layer in model.named_modules()]
    try:
        with torch.no_grad():
            forward()
    finally:
        for handle in handles:
            handle.remove()
    return f"the first output that is not finite is that of the layer `{found[0] or 'model'}`" if found else None


def _faulty_gradient(model: nn.Module) -> str | None:
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not _is_finite(parameter.grad):
            return f"the first gradient that is not finite is that of `{name}`"
    return None


def _is_finite(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex()) or bool(tensor.isfinite().all())
