"""Recipes by name, and trained runs."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from topomask.recipes.experiment import Experiment
from topomask.support.checks import look_up
from topomask.support.config import from_dict, to_dict
from topomask.support.files import parse_json
from topomask.train import CheckpointError, evaluate, find_checkpoint, join_processes, load_weights, read_checkpoint
from topomask.train.run_folder import changes, config_of

_IMAGES = ("digits", "fashion-mnist", "mnist", "cifar10", "tiny-imagenet-50", "image-folder", "imagenet-paper")
# The module of every recipe, imported on first use; its function has the name of the recipe, with underscores.
RECIPES = {
    **dict.fromkeys(_IMAGES, "images"),
    **dict.fromkeys(("moving-digits", "video-folder"), "videos"),
    "particles": "particles",
    **dict.fromkeys(("graphs", "gkat", "gkat-diffusion", "graphs-baseline", "motif"), "graphs"),
    **dict.fromkeys(("nodes", "nodes-baseline"), "nodes"),
}


def find_recipe(name: str) -> Callable[[], Experiment]:
    """Find the function of a recipe; its docstring describes the recipe."""
    return pkgutil.resolve_name(f"topomask.recipes.{look_up(RECIPES, 'recipe', name)}:{name.replace('-', '_')}")


def recipe(name: str) -> Experiment:
    """Return the experiment of a recipe."""
    return find_recipe(name)()


@dataclass(frozen=True)
class TrainedRun:
    """An experiment, its model with the weights of a checkpoint, and the step of the checkpoint."""

    experiment: Experiment
    model: nn.Module
    checkpoint: Path
    step: int

    def on_data(self, root: Path) -> TrainedRun:
        """Return the same run with its data in another folder."""
        data = self.experiment.data  # type: ignore[attr-defined]
        if not hasattr(data, "root"):
            raise ValueError(
                f"The data of {self.experiment.recipe!r} is generated, so it has no folder. Leave out --data."
            )
        moved = replace(self.experiment, data=replace(data, root=root.resolve()))  # type: ignore[call-arg]
        return replace(self, experiment=moved)

    def evaluate(self, split: str | None = None) -> dict[str, float]:
        """Compute the metrics on a split. Default: the held-out split."""
        experiment = self.experiment
        batches = experiment.batches(experiment.held_out if split is None else split)
        return evaluate(self.model, batches, experiment.task(), precision=experiment.train.precision)


def load_run(folder: Path | str) -> TrainedRun:
    """Load the model of a run of ``topomask train``: its best weights on validation examples, or else the last ones.

    For a run that was evaluated on the test set, these are the last, since a test set must not select anything.
    """
    folder = Path(folder)
    experiment = read_experiment(folder)
    path = find_checkpoint(folder, best=experiment.keeps_best)
    checkpoint = read_checkpoint(path)
    changed, step = changes(config_of(checkpoint), to_dict(experiment)), checkpoint.info.get("step")
    if changed:
        raise CheckpointError(
            f"{folder / 'config.json'} is not the config that {path} was trained with: {', '.join(changed)}. Undo the "
            "change, or use the config.json that belongs to this checkpoint."
        )
    if not isinstance(step, int):
        raise CheckpointError(f"{path} is damaged: its header does not contain the step.")
    model = experiment.build()
    load_weights(model, path)
    model = model.to(join_processes(experiment.train.device).device).eval()
    return TrainedRun(experiment, model, path, step)


def read_experiment(folder: Path) -> Experiment:
    """Read the experiment of a run folder."""
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} is not a run folder: it has no config.json. Pass the folder that was --output of topomask train."
        )
    try:
        record = parse_json(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: it is not valid JSON ({error}).") from None
    if not isinstance(record, dict) or not isinstance(record.get("recipe"), str):
        raise ValueError(
            f"{path} does not name a recipe, so it was not written by topomask train. Evaluate a run made in "
            "Python with result.evaluate; train.run(..., resume=True) returns the result again."
        )
    try:
        return from_dict(type(recipe(record["recipe"])), record)
    except ValueError as error:
        raise ValueError(f"{path} is not a config of this version of topomask: {error}") from None
