"""One step of training."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from topomask.train.config import Precision
from topomask.train.epochs import to_device
from topomask.train.faults import NonFiniteError, explain_fault
from topomask.train.processes import Processes
from topomask.train.tasks import Task


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
