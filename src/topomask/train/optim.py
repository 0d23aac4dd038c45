"""The optimiser and the learning rate of every step."""

from __future__ import annotations

import math

import torch
from torch import nn

from topomask.masks import Mask
from topomask.train.config import OptimConfig


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
