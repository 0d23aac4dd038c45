"""How to train: what a recipe states and the command line can change. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Optimizer = Literal["adam", "adamw"]
Precision = Literal["float32", "bfloat16"]
# Of a run that is told neither epochs nor steps.
_DEFAULT_EPOCHS = 10


@dataclass(frozen=True)
class OptimConfig:
    """The optimiser and its schedule: linear warm-up, constant, cosine decay.

    The paper gives Adam, 3e-3, 1e-5 and a warm-up of 10,000 steps, which is 0.36 of its 28,125 on ImageNet. It does not
    say when the decay begins.

    Args:
        name: The optimiser, adam or adamw. Weight decay is part of the gradient for the first only.
        lr: Learning rate between warm-up and decay.
        final_lr: Learning rate of the last step.
        warmup: Fraction of all steps, at the start, over which the learning rate rises.
        decay: Fraction of all steps, at the end, over which it falls.
        weight_decay: Decay of matrices; biases, norms and the parameters of masks do not decay.
        betas: Decay of the running means of the gradient and of its square.
        eps: Added to the root of the mean square.
        clip: Largest norm of the gradient of all parameters; None does not clip.

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
    """The length of a run, its optimiser, what it does on the way, and its seed.

    Args:
        optim: The optimiser and its schedule.
        epochs: Passes over the data; None for a length in steps, and 10 where both are None.
        steps: Steps in all, instead of epochs.
        seed: Seed of the weights, the walks and of dropout.
        device: Where to run: auto, cpu, cuda.
        precision: Precision of products; bfloat16 is mixed precision by autocast, where the device has it.
        log_every: Steps between lines of training metrics.
        eval_every: Steps between evaluations; None is every epoch.
        checkpoint_every: Steps between checkpoints; None is every epoch.
        patience: Evaluations in a row without a better one after which the run stops; None never does.
        keep: How many of the last checkpoints to keep, besides the best.
        tensorboard: Write metrics for TensorBoard too.
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
                f"`epochs` is {self.epochs} and `steps` is {self.steps}, but a run has one length. Set one of them and "
                "the other to None, as in --train.epochs None."
            )
        _check("seed", self.seed, 0 <= self.seed < 2**63, "in [0, 2**63)")
        _check("precision", self.precision, self.precision in ("float32", "bfloat16"), "'float32' or 'bfloat16'")

    def total_steps(self, length: int) -> int:
        """Steps in all, where an epoch has ``length`` of them."""
        if self.steps is not None:
            return self.steps
        return length * (_DEFAULT_EPOCHS if self.epochs is None else self.epochs)


# Fields that numbers do not depend on, apart from rounding: a resumed run may change them. (It may also have more
# patience.)
FREE_FIELDS = frozenset(
    [
        *("data.root", "data.download"),
        *("train.checkpoint_every", "train.device", "train.keep", "train.progress", "train.tensorboard"),
    ]
)


def _check(name: str, value: object, good: bool, expected: str) -> None:
    if not good:
        raise ValueError(f"`{name}` must be {expected}, but is {value!r}.")
