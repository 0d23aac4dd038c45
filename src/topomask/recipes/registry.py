"""Recipes by name: functions that return an experiment."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from topomask.config import from_dict
from topomask.recipes import images, particles, videos
from topomask.recipes.experiment import Experiment
from topomask.train import evaluate, find_checkpoint, load_weights, read_checkpoint

RECIPES: dict[str, Callable[[], Experiment]] = {
    "digits": images.digits,
    "fashion-mnist": images.fashion_mnist,
    "mnist": images.mnist,
    "cifar10": images.cifar10,
    "tiny-imagenet-50": images.tiny_imagenet_50,
    "image-folder": images.image_folder,
    "imagenet-paper": images.imagenet_paper,
    "moving-digits": videos.moving_digits,
    "video-folder": videos.video_folder,
    "particles": particles.particles,
}


def recipe(name: str) -> Experiment:
    """The experiment of a recipe."""
    if name not in RECIPES:
        close = difflib.get_close_matches(name, RECIPES, 1, cutoff=0.4)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise ValueError(f"There is no recipe {name!r}.{hint} Recipes: {', '.join(RECIPES)}.")
    return RECIPES[name]()


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

    def evaluate(self, split: str | None = None) -> dict[str, float]:
        """Metrics on a split; by default on that which is held out."""
        experiment = self.experiment
        batches = experiment.batches(experiment.held_out if split is None else split)
        return evaluate(self.model, batches, experiment.task(), precision=experiment.train.precision)


def load_run(folder: Path) -> TrainedRun:
    """The best model of a run, or its last where none was evaluated."""
    record = read_record(folder)
    experiment = from_dict(type(recipe(record["recipe"])), record)
    path = find_checkpoint(folder)
    model = experiment.build()
    load_weights(model, path)
    return TrainedRun(experiment, model.eval(), path, int(read_checkpoint(path).info["step"]))


def read_record(folder: Path) -> dict[str, Any]:
    """The config of a run, as JSON."""
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is no folder of a run: it has no config.json. Pass what --output was.")
    record: dict[str, Any] = json.loads(path.read_text())
    if "recipe" not in record:
        raise ValueError(f"{path} names no recipe, so it was not written by topomask train.")
    return record
