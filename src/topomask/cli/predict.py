"""``topomask predict``: what a trained model says of files."""

from __future__ import annotations

from pathlib import Path

from tyro.conf import Positional


def run(
    run_folder: Positional[Path],
    file: Positional[Path],
    files: Positional[tuple[Path, ...]] = (),
    *,
    top: int = 3,
    steps: int = 6,
    output: Path | None = None,
    json: bool = False,
) -> None:
    """Classify pictures (.png, .jpg, ...) or videos (.mp4, ...), or follow particles.

    Particles are an .npz file with positions [N, 3] and features [N, F].

    Args:
        run_folder: Folder of the run, such as runs/digits.
        file: What to predict for.
        files: More of them.
        top: Classes to list for each.
        steps: Frames to follow particles for.
        output: File for the particles' positions; None is <file>-predicted.npz.
        json: Print a line of JSON for each file.
    """
    from json import dumps

    from topomask.recipes.predictions import predict
    from topomask.recipes.registry import load_run

    for line in predict(load_run(run_folder), [file, *files], top=top, num_steps=steps, output=output):
        print(dumps(line.facts) if json else line.text)
