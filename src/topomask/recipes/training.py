"""Train by a recipe, and draw what happened."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from topomask.recipes.experiment import Experiment
from topomask.train import Result, join_processes, plot_run


def train_recipe(experiment: Experiment, folder: Path, *, resume: bool = False, fallback: bool = False) -> Result:
    """Train, and leave config, metrics, checkpoints and pictures in a folder.

    Args:
        experiment: What to train.
        folder: Folder of the run.
        resume: Go on with the run in the folder, if there is one.
        fallback: Where the last checkpoint is damaged, take the one before it.
    """
    # Said before the training, not after it.
    if find_spec("matplotlib") is None:
        message = "The pictures of a run need matplotlib. Install it with: pip install 'topomask[plot]'"
        raise ModuleNotFoundError(message, name="matplotlib")
    result = experiment.run(folder, resume=resume, fallback=fallback)
    if join_processes(experiment.train.device).is_first:
        pictures = plot_run(folder, result.model)
        found = ", ".join(f"{name} {value:.4g}" for name, value in result.metrics.items())
        print(f"After {result.step} steps and {result.seconds:.0f} s, on the part that is held out: {found}.")
        print(f"Pictures: {', '.join(map(str, pictures))}.")
        asked = f"; topomask predict {folder} FILE" if experiment.predicts_files else ""
        print(f"Next: topomask eval {folder}{asked}")
    return result
