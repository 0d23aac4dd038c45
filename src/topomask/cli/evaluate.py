"""``topomask eval``: evaluate a model that was trained."""

from __future__ import annotations

from pathlib import Path

from tyro.conf import Positional


def run(
    run_folder: Positional[Path], *, split: str | None = None, data: Path | None = None, json: bool = False
) -> None:
    """Evaluate a run with the weights that were best on validation examples, or else with its last.

    Its last are used where it had no validation examples, or was evaluated on test examples.

    Args:
        run_folder: Folder of the run, such as runs/digits.
        split: Which part of the data; None is the one that is held out.
        data: Folder of data sets; None is as in training.
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
