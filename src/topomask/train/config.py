"""Training options: set by a recipe, changed on the command line. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Optimizer = Literal["adam", "adamw"]
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class OptimConfig:
    """Optimiser and learning-rate schedule: linear warm-up, constant, cosine decay.

    The paper uses Adam with 3e-3, 1e-5 and 10,000 warm-up steps, which is 0.36 of its 28,125 on ImageNet. It does not
    say when the decay begins.

    Args:
        name: Optimiser: adam (weight decay is added to the gradient) or adamw (decoupled weight decay).
        lr: Learning rate between warm-up and decay.
        final_lr: Learning rate of the last step.
        warmup: Fraction of all steps, at the start, over which the learning rate rises.
        decay: Fraction of all steps, at the end, over which the learning rate falls.
        weight_decay: Weight decay of matrices; biases, norms and mask parameters do not decay.
        betas: Coefficients of the running means of the gradient and its square.
        eps: Added to the denominator for numerical stability.
        clip: Maximum norm of the gradient of all parameters; None disables clipping.

    References:
        Reid et al. (2025), Table 2.
    """

    name: Optimizer = "adamw"
    lr: float = 3e-3
    final_lr: float = 1e-5
    warmup: float = 0.1
    decay: float = 0.5
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip: float | None = 1.0

    def __post_init__(self) -> None:
        _check("name", self.name, self.name in ("adam", "adamw"), "'adam' or 'adamw'")
        _check("lr", self.lr, 0 < self.lr < float("inf"), "positive and finite")
        _check("final_lr", self.final_lr, 0 <= self.final_lr <= self.lr, f"in [0, lr={self.lr}]")
        _check("warmup", self.warmup, 0 <= self.warmup <= 1, "in [0, 1]")
        _check("decay", self.decay, 0 <= self.decay <= 1 - self.warmup, f"in [0, 1 - warmup={1 - self.warmup:g}]")
        _check("weight_decay", self.weight_decay, 0 <= self.weight_decay < float("inf"), "at least 0 and finite")
        _check("betas", self.betas, all(0 <= beta < 1 for beta in self.betas), "in [0, 1)")
        _check("eps", self.eps, self.eps > 0, "positive")
        _check("clip", self.clip, self.clip is None or self.clip > 0, "positive or None")


@dataclass(frozen=True)
class TrainConfig:
    """Length of a run, its optimiser, logging, checkpoints and seed.

    Args:
        optim: Optimiser and schedule.
        epochs: Passes over the data; set either this or steps. Default: 10 if both are None.
        steps: Total number of steps.
        seed: Seed of weights, walks and dropout.
        device: Device to train on: auto, cpu or cuda.
        precision: float32, or bfloat16 for mixed precision by autocast.
        log_every: Steps between lines of training metrics.
        eval_every: Steps between evaluations; None evaluates once per epoch.
        checkpoint_every: Steps between checkpoints; None saves once per epoch.
        patience: Stop after this many evaluations in a row without improvement; None never stops early.
        keep: How many of the latest checkpoints to keep, besides the best.
        tensorboard: Also write metrics for TensorBoard.
        progress: Show progress.
    """

    optim: OptimConfig = field(default_factory=OptimConfig)
    epochs: int | None = None
    steps: int | None = None
    seed: int = 0
    device: str = "auto"
    precision: Precision = "float32"
    log_every: int = 20
    eval_every: int | None = None
    checkpoint_every: int | None = None
    patience: int | None = None
    keep: int = 2
    tensorboard: bool = False
    progress: bool = True

    def __post_init__(self) -> None:
        for name in ("epochs", "steps", "log_every", "eval_every", "checkpoint_every", "patience", "keep"):
            value = getattr(self, name)
            _check(name, value, value is None or value >= 1, "at least 1")
        if self.epochs is not None and self.steps is not None:
            raise ValueError(
                f"`epochs` is {self.epochs} and `steps` is {self.steps}, but only one can be set. Set the other to "
                "None, as in --train.epochs None."
            )
        _check("seed", self.seed, 0 <= self.seed < 2**63, "in [0, 2**63)")
        _check("precision", self.precision, self.precision in ("float32", "bfloat16"), "'float32' or 'bfloat16'")

    def total_steps(self, length: int) -> int:
        """The total number of steps, with ``length`` steps per epoch."""
        return length * (self.epochs or 10) if self.steps is None else self.steps


# Fields that do not affect the results, apart from rounding, so a resumed run may change them. (It may also raise
# `patience`.)
_FREE_TRAIN_FIELDS = ("checkpoint_every", "device", "keep", "progress", "tensorboard")
FREE_FIELDS = frozenset({"data.root", "data.download", *(f"train.{name}" for name in _FREE_TRAIN_FIELDS)})


def _check(name: str, value: object, valid: bool, expected: str) -> None:
    if not valid:
        raise ValueError(f"`{name}` must be {expected}, but is {value!r}.")
