"""``topomask eval`` and ``topomask predict``: use a trained model."""

from __future__ import annotations

from pathlib import Path

from tyro.conf import Positional


def evaluate(
    run_folder: Positional[Path], *, split: str | None = None, data: Path | None = None, json: bool = False
) -> None:
    """Evaluate a run, with its best weights on validation examples.

    Uses its last weights if it had no validation examples, or was evaluated on test examples.

    Args:
        run_folder: Folder of the run, such as runs/digits.
        split: Split of the data. Default: the held-out split.
        data: Folder of data sets. Default: as in training.
        json: Print JSON.
    """
    from json import dumps

    from topomask.recipes.registry import load_run

    found = load_run(run_folder)
    if data is not None:
        found = found.on_data(data)
    metrics = found.evaluate(split)
    if json:
        print(dumps({"checkpoint": str(found.checkpoint), "step": found.step, **metrics}))
        return
    print(f"{found.checkpoint}, step {found.step}, split {found.experiment.held_out if split is None else split}")
    for name, value in metrics.items():
        print(f"  {name:12s} {value:.6g}")


def predict(
    run_folder: Positional[Path],
    file: Positional[Path],
    files: Positional[tuple[Path, ...]] = (),
    *,
    top: int = 3,
    steps: int = 6,
    output: Path | None = None,
    json: bool = False,
) -> None:
    """Classify pictures (.png, .jpg, ...) or videos (.mp4, ...), or predict the motion of particles.

    Particles are an .npz file with positions [N, 3] and features [N, F].

    Args:
        run_folder: Folder of the run, such as runs/digits.
        file: File to predict for.
        files: More files.
        top: Number of classes to list per file.
        steps: Number of frames to predict, for particles.
        output: File for the positions of particles. Default: <file>-predicted.npz.
        json: Print one line of JSON per file.
    """
    from json import dumps

    from topomask.recipes import predictions
    from topomask.recipes.registry import load_run

    for line in predictions.predict(load_run(run_folder), [file, *files], top=top, num_steps=steps, output=output):
        print(dumps(line.facts) if json else line.text)
