"""``topomask eval``: evaluate a model that was trained."""

from __future__ import annotations

import argparse
from pathlib import Path

from topomask.cli import plain_failures


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the verb takes."""
    parser.description = (
        "Evaluate a run: with the weights that were best on validation examples; or, where it had none or was "
        "evaluated on test examples, with its last."
    )
    parser.add_argument("run_folder", type=Path, metavar="run", help="folder of the run, such as runs/digits")
    parser.add_argument("--split", help="which part of the data; default: the one that is held out")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of data sets; default: as in training")
    parser.add_argument("--json", action="store_true", help="print JSON")


@plain_failures
def run(options: argparse.Namespace) -> None:
    """Evaluate, and print the metrics."""
    import json

    from topomask.recipes.registry import load_run

    found = load_run(options.run_folder)
    if options.data is not None:
        found = found.on_data(options.data)
    metrics = found.evaluate(options.split)
    if options.json:
        print(json.dumps({"checkpoint": str(found.checkpoint), "step": found.step, **metrics}))
        return
    split = found.experiment.held_out if options.split is None else options.split
    print(f"{found.checkpoint}, step {found.step}, split {split}")
    for name, value in metrics.items():
        print(f"  {name:12s} {value:.6g}")
