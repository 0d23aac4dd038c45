"""What a trained model says of files."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from topomask.data.npz import read_npz
from topomask.recipes.labelled import LabelledExperiment
from topomask.recipes.registry import TrainedRun
from topomask.support.files import write_atomically


@dataclass(frozen=True)
class Prediction:
    """What is said of one file.

    Args:
        text: In a line.
        facts: As JSON.
    """

    text: str
    facts: dict[str, Any]


def predict(
    run: TrainedRun, files: Sequence[Path], *, top: int = 3, num_steps: int = 6, output: Path | None = None
) -> Iterator[Prediction]:
    """Classify pictures or videos, or follow particles, file by file.

    Args:
        run: The trained run.
        files: The files.
        top: Classes to name for each.
        num_steps: Frames to follow particles for.
        output: Where to write the positions of particles. Default: beside the file, as ``<file>-predicted.npz``.
    """
    if top < 1 or num_steps < 1:
        raise ValueError(f"`top` and `steps` must be at least 1, but are {top} and {num_steps}.")
    experiment = run.experiment
    if not experiment.predicts_files:
        raise ValueError(
            f"`topomask predict` reads pictures, videos and particles, but the model of this run, of recipe "
            f"{experiment.recipe!r}, takes graphs. Load it with topomask.recipes.registry.load_run, and call its model."
        )
    if isinstance(experiment, LabelledExperiment):
        if output is not None:
            raise ValueError("`output` is for particles. Classes are printed; add --json for lines of JSON.")
        for path in files:
            yield _classify(run, experiment, path, top)
        return
    if output is not None and len(files) > 1:
        raise ValueError(f"`output` is one file, but there are {len(files)} to predict for. Leave it out.")
    for path in files:
        target = path.with_name(f"{path.stem}-predicted.npz") if output is None else output
        yield _follow(run, path, num_steps, target)


def _classify(run: TrainedRun, experiment: LabelledExperiment, path: Path, top: int) -> Prediction:
    assert experiment.facts is not None
    inputs = experiment.augment().without_draws()(experiment.read(path)[None])
    with torch.no_grad():
        chances = run.model(inputs)[0].softmax(dim=-1)
    best = chances.topk(min(top, len(chances)))
    classes = [
        (experiment.facts.classes[i], p) for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    text = f"{path}: " + ", ".join(f"{name} {chance:.1%}" for name, chance in classes)
    return Prediction(text, {"file": str(path), "classes": [{"name": name, "probability": p} for name, p in classes]})


def _follow(run: TrainedRun, path: Path, num_steps: int, target: Path) -> Prediction:
    # An Interlacer; its module need not be imported to classify pictures.
    model: Any = run.model
    positions, features = _read_particles(path)
    try:
        with torch.no_grad():
            moved, changed = model.rollout(positions, features, num_steps)
    except ValueError as error:
        raise ValueError(f"{path} does not suit the model: {error}") from None
    content = io.BytesIO()
    np.savez(content, positions=moved.numpy(), features=changed.numpy())
    write_atomically(target, lambda temporary: temporary.write_bytes(content.getvalue()))
    mean = float((moved[-1] - positions).norm(dim=-1).mean())
    facts = {"file": str(path), "written": str(target), "steps": num_steps, "mean_distance": mean}
    return Prediction(f"{path}: {len(positions):,} particles move {mean:.3g} m on average, {target}", facts)


def _read_particles(path: Path) -> tuple[Tensor, Tensor]:
    expected = "It must be an .npz file with positions [N, 3] and features [N, F], as numpy.savez writes it."
    try:
        arrays = read_npz(path)
        lacking = [name for name in ("positions", "features") if name not in arrays]
        if lacking:
            raise ValueError(f"it has no {' and no '.join(lacking)}")
        positions, features = (
            torch.from_numpy(arrays[name].astype(np.float32, casting="same_kind")) for name in ("positions", "features")
        )
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no file {path}.") from None
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path} cannot be read ({error}). {expected}") from None
    return positions, features
