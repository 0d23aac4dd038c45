"""What is trained, on what, and how: all that the numbers of a run depend on; and the training itself."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

from torch import nn
from tyro.conf import Suppress

from topomask.support.imports import EXTRAS, installed
from topomask.train import (
    Epochs,
    Result,
    Task,
    TrainConfig,
    evaluate,
    find_checkpoint,
    join_processes,
    load_weights,
    plot_run,
    run,
)
from topomask.train.run_folder import has_checkpoint

if TYPE_CHECKING:
    from topomask.data import GraphSet, NodeSet

ChooseBy = Literal["metric", "loss"]
# What training by a recipe imports at its end, for checkpoints and pictures.
_NEEDED = ("safetensors", "matplotlib")


@dataclass(frozen=True, kw_only=True)
class Experiment(ABC):
    """A model, its data, and how it is trained; subclasses add the groups ``data`` and ``model``.

    Args:
        recipe: Name of the recipe that it started from.
        train: The optimiser, the length of the run, and its seed.
        start: A checkpoint whose weights are taken, apart from those of the head; None starts anew.
    """

    # A split that is looked at once, with the weights that were best on what is held out.
    final_split: ClassVar[str | None] = None
    # Whether there are files that a trained model can be asked about.
    predicts_files: ClassVar[bool] = False

    recipe: Suppress[str]
    train: TrainConfig = field(default_factory=TrainConfig)
    start: Path | None = None

    @property
    @abstractmethod
    def held_out(self) -> str:
        """The split that is evaluated on."""

    @property
    def keeps_best(self) -> bool:
        """Whether the weights that are best on what is held out count; nothing is chosen by a test set."""
        return self.held_out != "test"

    @abstractmethod
    def fitted(self) -> Self:
        """The same with everything filled in that the data decides."""

    def build(self) -> nn.Module:
        """The model, not yet trained."""
        return self.model.build()  # type: ignore[attr-defined]

    @abstractmethod
    def batches(self, split: str, training: bool = False) -> Epochs | Sequence[Any]:
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
        # The weights of a checkpoint take the place of those to start from, which need not be there any more.
        goes_on = resume and self.start is not None and has_checkpoint(folder)
        return run(
            whole.train,
            whole.build if goes_on else whole._start_model,
            whole.batches("train", training=True),
            whole.task(),
            folder,
            valid=whole.batches(whole.held_out),
            record=whole,
            resume=resume,
            fallback=fallback,
        )

    def measure(self, result: Result) -> dict[str, float]:
        """What counts of a run: its last evaluation, since nothing was chosen by what is held out.

        Where a split is kept for the end, the metrics of the best weights on it, with those by which they were chosen.
        """
        if self.final_split is None:
            return result.metrics
        whole = self.fitted()
        model = whole.build()
        load_weights(model, find_checkpoint(result.folder))
        found = evaluate(model, whole.batches(self.final_split), whole.task(), precision=self.train.precision)
        return found | {f"{self.held_out}_{name}": value for name, value in result.best.items()}

    def _start_model(self) -> nn.Module:
        model = self.build()
        if self.start is not None:
            load_weights(model, self.start, except_prefix="head.")
        return model


@dataclass(frozen=True, kw_only=True)
class ValidatedExperiment(Experiment):
    """An experiment whose weights are chosen on validation examples, and measured on test examples once.

    Args:
        choose_by: What of the validation examples the weights are chosen by: the metric, or the loss, which says more
            where there are few.
    """

    final_split: ClassVar[str | None] = "test"

    choose_by: ChooseBy = "metric"

    def __post_init__(self) -> None:
        if self.choose_by not in get_args(ChooseBy):
            raise ValueError(f"`choose_by` must be one of {get_args(ChooseBy)}, but is {self.choose_by!r}.")

    @property
    def held_out(self) -> str:
        """The split that is evaluated on in training."""
        return "val"

    def task(self) -> Task:
        """The loss and its metrics."""
        task = self._task()
        if self.choose_by == "loss":
            task.monitor, task.higher_is_better = "loss", False
        return task

    @abstractmethod
    def _task(self) -> Task:
        """The same, with weights chosen by the metric."""

    def fitted_to(self, found: GraphSet | NodeSet) -> Self:
        """The same with the number of features and classes taken from the data."""
        shape = {"in_features": found.num_features, "num_classes": found.num_classes}
        return replace(self, model=fill(self.model, **shape))  # type: ignore[attr-defined, call-arg]


def fill(model: Any, **found: Any) -> Any:
    """A config with the fields that are None filled in; a ValueError where one says something else."""
    for name, value in found.items():
        given = getattr(model, name)
        if given is not None and given not in (value, _pair(value)):
            raise ValueError(f"`model.{name}` is {given}, but the data has {value}. Leave it out, or take other data.")
    return dataclasses.replace(model, **found)


def _pair(size: Any) -> Any:
    return (size, size) if isinstance(size, int) else size


def train_recipe(experiment: Experiment, folder: Path, *, resume: bool = False, fallback: bool = False) -> Result:
    """Train, and leave config, metrics, checkpoints and pictures in a folder.

    Args:
        experiment: What to train.
        folder: Folder of the run.
        resume: Go on with the run in the folder, if there is one.
        fallback: Where the last checkpoint is damaged, take the one before it.
    """
    # Said before the training, not after it, and before data is read.
    lacking = [module for module in _NEEDED if not installed(module)]
    if lacking:
        extras = ",".join(EXTRAS[module].extra for module in lacking)
        raise ModuleNotFoundError(
            f"Training by a recipe needs {' and '.join(lacking)}, which {'are' if len(lacking) > 1 else 'is'} not "
            f"installed. Install what is missing with: pip install 'topomask[{extras}]'",
            name=lacking[0],
        )
    result = experiment.run(folder, resume=resume, fallback=fallback)
    if join_processes(experiment.train.device).is_first:
        pictures = plot_run(folder, result.model)
        found = ", ".join(f"{name} {value:.4g}" for name, value in result.metrics.items())
        print(f"After {result.step} steps and {result.seconds:.0f} s, on the part that is held out: {found}.")
        print(f"Pictures: {', '.join(map(str, pictures))}.")
        asked = f"; topomask predict {folder} FILE" if experiment.predicts_files else ""
        print(f"Next: topomask eval {folder}{asked}")
    return result
