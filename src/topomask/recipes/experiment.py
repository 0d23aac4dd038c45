"""Experiments: a model, its data and how to train it, which is everything that the results of a run depend on."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

from torch import Tensor, nn
from tyro.conf import Suppress

from topomask.support.checks import check_choice
from topomask.support.imports import EXTRAS, installed
from topomask.train import (
    Epochs,
    Result,
    Task,
    TrainConfig,
    join_processes,
    load_weights,
    plot_run,
    run,
)
from topomask.train.run_folder import has_checkpoint

if TYPE_CHECKING:
    from topomask.data import GraphSet, NodeSet

ChooseBy = Literal["metric", "loss"]


@dataclass(frozen=True, kw_only=True)
class Experiment(ABC):
    """A model, its data, and how to train it; subclasses add the groups ``data`` and ``model``.

    Args:
        recipe: Name of the recipe.
        train: Optimiser, length of the run, and seed.
        start: Checkpoint to take the weights from, except those of the head; None starts from scratch.
    """

    # A split for the final evaluation of the best weights on the held-out split.
    final_split: ClassVar[str | None] = None
    # Whether `topomask predict` works.
    predicts_files: ClassVar[bool] = False

    recipe: Suppress[str]
    train: TrainConfig = field(default_factory=TrainConfig)
    start: Path | None = None

    @property
    @abstractmethod
    def held_out(self) -> str:
        """The split to evaluate on."""

    @property
    def keeps_best(self) -> bool:
        """Whether to use the best weights on the held-out split; a test set must not select anything."""
        return self.held_out != "test"

    @abstractmethod
    def fitted(self) -> Self:
        """Return a copy with all fields filled in that depend on the data."""

    def build(self) -> nn.Module:
        """Build the untrained model."""
        return self.model.build()  # type: ignore[attr-defined]

    @abstractmethod
    def batches(self, split: str, training: bool = False) -> Epochs | Sequence[Any]:
        """Batches of a split, shuffled and augmented for training."""

    @abstractmethod
    def task(self) -> Task:
        """The loss and its metrics."""

    def with_seed(self, seed: int) -> Self:
        """Return a copy with another seed for weights, walks and the order of the data."""
        return replace(self, train=replace(self.train, seed=seed))

    def run(self, folder: Path, *, resume: bool = False, fallback: bool = False) -> Result:
        """Train; for the arguments, see :func:`topomask.train.run`."""
        fitted = self.fitted()
        # When resuming, the file with the start weights need not exist any more.
        starts = self.start is not None and not (resume and has_checkpoint(folder))
        return run(
            fitted.train,
            fitted._start_model if starts else fitted.build,
            fitted.batches("train", training=True),
            fitted.task(),
            folder,
            valid=fitted.batches(fitted.held_out),
            record=fitted,
            resume=resume,
            fallback=fallback,
        )

    def measure(self, result: Result) -> dict[str, float]:
        """Return the metrics to report for a run: those of its last evaluation.

        If there is a final split: the metrics of the best weights on it, and the held-out metrics that selected them.
        """
        if self.final_split is None:
            return result.metrics
        found = result.evaluate(self.fitted().batches(self.final_split))
        return found | {f"{self.held_out}_{name}": value for name, value in result.best.items()}

    def _start_model(self) -> nn.Module:
        assert self.start is not None
        model = self.build()
        load_weights(model, self.start, except_prefix="head.")
        return model


@dataclass(frozen=True, kw_only=True)
class ValidatedExperiment(Experiment):
    """An experiment that selects weights on validation examples, and evaluates them once on test examples.

    Args:
        choose_by: What selects the weights on validation examples: the metric, or the loss, which is more reliable for
            few examples.
    """

    final_split: ClassVar[str | None] = "test"
    held_out = "val"

    choose_by: ChooseBy = "metric"

    def __post_init__(self) -> None:
        check_choice("choose_by", self.choose_by, get_args(ChooseBy))

    def chosen(self, task: Task) -> Task:
        """Return the task, with weights chosen by its metric or its loss."""
        if self.choose_by == "loss":
            task.monitor, task.higher_is_better = "loss", False
        return task

    def fitted_to(self, found: GraphSet | NodeSet) -> Self:
        """Return a copy with the number of features and classes of the data."""
        shape = {"in_features": found.num_features, "num_classes": found.num_classes}
        return replace(self, model=fill(self.model, **shape))  # type: ignore[attr-defined, call-arg]


def fill(model: Any, **found: Any) -> Any:
    """Fill in the fields of a config that depend on the data; raise a ValueError if one is set to something else."""
    for name, value in found.items():
        given = getattr(model, name)
        if given not in (None, value, (value, value)):
            raise ValueError(f"`model.{name}` is {given}, but the data has {value}. Leave it out, or use other data.")
    return replace(model, **found)


def digest_of(parts: Iterable[Tensor]) -> str:
    """Hash which examples are in which part, whatever their order; ``parts`` are their indices."""
    text = json.dumps([part.sort().values.tolist() for part in parts])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def train_recipe(experiment: Experiment, folder: Path, *, resume: bool = False, fallback: bool = False) -> Result:
    """Train, and write config, metrics, checkpoints and plots to a folder; see :func:`topomask.train.run`."""
    # Checkpoints and plots need these. Fail now, not after the training.
    missing = [module for module in ("safetensors", "matplotlib") if not installed(module)]
    if missing:
        extras = ",".join(EXTRAS[module].extra for module in missing)
        raise ModuleNotFoundError(
            f"Training with a recipe needs {' and '.join(missing)}, which {'are' if len(missing) > 1 else 'is'} not "
            f"installed. Install with: pip install 'topomask[{extras}]'",
            name=missing[0],
        )
    result = experiment.run(folder, resume=resume, fallback=fallback)
    if join_processes(experiment.train.device).is_first:
        plots = plot_run(folder, result.model)
        found = ", ".join(f"{name} {value:.4g}" for name, value in result.metrics.items())
        print(f"After {result.step} steps and {result.seconds:.0f} s, on the held-out split: {found}.")
        print(f"Plots: {', '.join(map(str, plots))}.")
        predict = f"; topomask predict {folder} FILE" if experiment.predicts_files else ""
        print(f"Next: topomask eval {folder}{predict}")
    return result
