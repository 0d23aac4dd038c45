"""Recipes by name: functions that return an experiment."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from topomask.recipes.experiment import Experiment
from topomask.support.config import from_dict, to_dict
from topomask.support.files import parse_json
from topomask.support.near_names import look_up
from topomask.train import (
    CheckpointError,
    evaluate,
    find_checkpoint,
    join_processes,
    load_weights,
    read_checkpoint,
)
from topomask.train.run_folder import changes, config_of

# The module and function of every recipe. Only those of the recipe that is asked for are imported.
RECIPES = {
    "digits": "images:digits",
    "fashion-mnist": "images:fashion_mnist",
    "mnist": "images:mnist",
    "cifar10": "images:cifar10",
    "tiny-imagenet-50": "images:tiny_imagenet_50",
    "image-folder": "images:image_folder",
    "imagenet-paper": "images:imagenet_paper",
    "moving-digits": "videos:moving_digits",
    "video-folder": "videos:video_folder",
    "particles": "particles:particles",
    "graphs": "graphs:graphs",
    "gkat": "graphs:gkat",
    "gkat-diffusion": "graphs:gkat_diffusion",
    "graphs-baseline": "graphs:graphs_baseline",
    "motif": "graphs:motif",
    "nodes": "nodes:nodes",
    "nodes-baseline": "nodes:nodes_baseline",
}


def find_recipe(name: str) -> Callable[[], Experiment]:
    """The function of a recipe, whose docstring says what it is."""
    module, _, function = look_up(RECIPES, "recipe", name).partition(":")
    found: Callable[[], Experiment] = getattr(importlib.import_module(f"topomask.recipes.{module}"), function)
    return found


def recipe(name: str) -> Experiment:
    """The experiment of a recipe."""
    return find_recipe(name)()


@dataclass(frozen=True)
class TrainedRun:
    """A run that was trained.

    Args:
        experiment: What was trained.
        model: The model, with the weights of a checkpoint.
        checkpoint: That checkpoint.
        step: Steps after which it was written.
    """

    experiment: Experiment
    model: nn.Module
    checkpoint: Path
    step: int

    def on_data(self, root: Path) -> TrainedRun:
        """The same run, with its data in another folder."""
        data = self.experiment.data  # type: ignore[attr-defined]
        if not hasattr(data, "root"):
            raise ValueError(f"The data of {self.experiment.recipe!r} is generated, so it is in no folder.")
        moved = replace(self.experiment, data=replace(data, root=root.resolve()))  # type: ignore[call-arg]
        return replace(self, experiment=moved)

    def evaluate(self, split: str | None = None) -> dict[str, float]:
        """Metrics on a split; by default on that which is held out."""
        experiment = self.experiment
        batches = experiment.batches(experiment.held_out if split is None else split)
        return evaluate(self.model, batches, experiment.task(), precision=experiment.train.precision)


def load_run(folder: Path) -> TrainedRun:
    """The model of a run with the weights that were best on validation examples, or else with its last.

    Where a run was evaluated on the test set, these are the last, since nothing may be chosen by it.
    """
    experiment = read_experiment(folder)
    path = find_checkpoint(folder, best=experiment.keeps_best)
    checkpoint = read_checkpoint(path)
    changed, step = changes(config_of(checkpoint), to_dict(experiment)), checkpoint.info.get("step")
    if changed:
        raise CheckpointError(
            f"{folder / 'config.json'} is not the config that {path} was trained with: {', '.join(changed)}. Write "
            "what it was before, or take the config.json that belongs to this checkpoint."
        )
    if not isinstance(step, int):
        raise CheckpointError(f"{path} is damaged: its header does not say after which step it was written.")
    model = experiment.build()
    load_weights(model, path)
    model = model.to(join_processes(experiment.train.device).device).eval()
    return TrainedRun(experiment, model, path, step)


def read_experiment(folder: Path) -> Experiment:
    """What was trained in a folder."""
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is not a run folder: it has no config.json. Pass what --output was.")
    try:
        record = parse_json(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: it is not JSON ({error}).") from None
    if not isinstance(record, dict) or not isinstance(record.get("recipe"), str):
        raise ValueError(f"{path} names no recipe, so it was not written by topomask train.")
    try:
        return from_dict(type(recipe(record["recipe"])), record)
    except ValueError as error:
        raise ValueError(f"{path} is not a config of this version of topomask: {error}") from None
