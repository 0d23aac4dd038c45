"""Predictions of a trained model for files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from topomask.data.npz import read_npz, write_npz
from topomask.recipes.labelled import LabelledExperiment
from topomask.recipes.registry import TrainedRun


@dataclass(frozen=True)
class Prediction:
    """The prediction for one file, as a line of text, and as JSON."""

    text: str
    facts: dict[str, Any]


def predict(
    run: TrainedRun, files: Sequence[Path], *, top: int = 3, num_steps: int = 6, output: Path | None = None
) -> Iterator[Prediction]:
    """Classify pictures or videos, or predict the motion of particles, file by file.

    Args:
        run: The trained run.
        files: The files.
        top: Number of classes to list per file.
        num_steps: Number of frames to predict, for particles.
        output: File for the positions of particles. Default: ``<file>-predicted.npz`` next to the file.
    """
    if top < 1 or num_steps < 1:
        raise ValueError(f"`top` and `steps` must be at least 1, but are {top} and {num_steps}.")
    experiment = run.experiment
    if not experiment.predicts_files:
        raise ValueError(
            f"`topomask predict` reads pictures, videos and particles, but the model of recipe {experiment.recipe!r} "
            "takes graphs. Load the run with topomask.recipes.registry.load_run, and call its model on features "
            "standardised as in training, see 'Predict on new graphs' in docs/graphs.md."
        )
    if isinstance(experiment, LabelledExperiment):
        if output is not None:
            raise ValueError(
                "`output` is for particles only; classes are printed. Leave it out, or add --json to print JSON."
            )
        for path in files:
            yield _classify(run, experiment, path, top)
        return
    if output is not None and len(files) > 1:
        raise ValueError(f"`output` is a single file, but there are {len(files)} files to predict for. Leave it out.")
    for path in files:
        target = path.with_name(f"{path.stem}-predicted.npz") if output is None else output
        yield _follow(run, path, num_steps, target)


def _classify(run: TrainedRun, experiment: LabelledExperiment, path: Path, top: int) -> Prediction:
    assert experiment.facts is not None
    inputs = experiment.augment().without_draws()(experiment.read(path)[None])
    with torch.no_grad():
        chances = run.model(inputs)[0].softmax(dim=-1)
    best = chances.topk(min(top, len(chances)))
    names = [experiment.facts.classes[place] for place in best.indices.tolist()]
    classes = [{"name": name, "probability": p} for name, p in zip(names, best.values.tolist(), strict=True)]
    text = ", ".join(f"{each['name']} {each['probability']:.1%}" for each in classes)
    return Prediction(f"{path}: {text}", {"file": str(path), "classes": classes})


def _follow(run: TrainedRun, path: Path, num_steps: int, target: Path) -> Prediction:
    # An Interlacer, whose module is not imported here since pictures do not need it.
    model: Any = run.model
    positions, features = _read_particles(path)
    try:
        with torch.no_grad():
            moved, changed = model.rollout(positions, features, num_steps)
    except ValueError as error:
        raise ValueError(f"{path} does not fit the model: {error}") from None
    write_npz(target, positions=moved.numpy(), features=changed.numpy())
    mean = float((moved[-1] - positions).norm(dim=-1).mean())
    facts = {"file": str(path), "written": str(target), "steps": num_steps, "mean_distance": mean}
    return Prediction(f"{path}: {len(positions):,} particles move {mean:.3g} m on average, {target}", facts)


def _read_particles(path: Path) -> tuple[Tensor, Tensor]:
    try:
        arrays = read_npz(path)
        missing = [name for name in ("positions", "features") if name not in arrays]
        if missing:
            raise ValueError(f"it has no {' and no '.join(missing)}")
        found = (arrays[name].astype(np.float32, casting="same_kind") for name in ("positions", "features"))
        positions, features = map(torch.from_numpy, found)
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no file {path}.") from None
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}). It must be an .npz file with positions [N, 3] and features [N, F], as "
            "numpy.savez writes it."
        ) from None
    return positions, features
