"""What is trained, on what, and how: all that the numbers of a run depend on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from torch import nn

from topomask.data import Batches
from topomask.train import Result, Task, TrainConfig, load_weights, run


@dataclass(frozen=True, kw_only=True)
class Experiment(ABC):
    """A model, its data, and how it is trained; subclasses add the groups ``data`` and ``model``.

    Args:
        recipe: Name of the recipe that it started from.
        train: The optimiser, the length of the run, and its seed.
        start: A checkpoint whose weights are taken, apart from those of the head; none starts anew.
    """

    recipe: str
    train: TrainConfig = field(default_factory=TrainConfig)
    start: Path | None = None

    @property
    @abstractmethod
    def held_out(self) -> str:
        """The split that is evaluated on."""

    @abstractmethod
    def fitted(self) -> Self:
        """The same with everything filled in that the data decides."""

    @abstractmethod
    def build(self) -> nn.Module:
        """The model, not yet trained."""

    @abstractmethod
    def batches(self, split: str) -> Batches:
        """Batches of a split: shuffled and augmented for training, plain otherwise."""

    @abstractmethod
    def task(self) -> Task:
        """The loss and its metrics."""

    def with_seed(self, seed: int) -> Self:
        """The same with another seed of weights, walks and order."""
        return replace(self, train=replace(self.train, seed=seed))

    def run(self, folder: Path, *, resume: bool = False, fallback: bool = False) -> Result:
        """Train.

        Args:
            folder: Where everything is kept that is needed to resume, evaluate and predict.
            resume: Go on with the run in the folder, if there is one.
            fallback: Where the last checkpoint is damaged, take the one before it.
        """
        whole = self.fitted()
        return run(
            whole.train,
            whole._start_model,
            whole.batches("train"),
            whole.task(),
            folder,
            valid=whole.batches(whole.held_out),
            record=whole,
            resume=resume,
            fallback=fallback,
        )

    def _start_model(self) -> nn.Module:
        model = self.build()
        if self.start is not None:
            load_weights(model, self.start, except_prefix="head.")
        return model
