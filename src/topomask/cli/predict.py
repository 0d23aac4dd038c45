"""``topomask predict``: what a trained model says of files."""

from __future__ import annotations

import argparse
from pathlib import Path

from topomask.cli import plain_failures


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the verb takes."""
    parser.description = (
        "Classify pictures (.png, .jpg, ...) or videos (.mp4, ...), or follow particles: an .npz file with positions "
        "[N, 3] and features [N, F]."
    )
    parser.add_argument("run_folder", type=Path, metavar="run", help="folder of the run, such as runs/digits")
    parser.add_argument("files", nargs="+", type=Path, metavar="file", help="what to predict for")
    parser.add_argument("--top", type=int, default=3, help="classes to list for each; default: 3")
    parser.add_argument("--steps", type=int, default=6, help="frames to follow particles for; default: 6")
    parser.add_argument("--output", type=Path, help="file for the particles' positions; default: <file>-predicted.npz")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each file")


@plain_failures
def run(options: argparse.Namespace) -> None:
    """Predict, and print."""
    import json

    from topomask.recipes.predictions import predict
    from topomask.recipes.registry import load_run

    found = load_run(options.run_folder)
    for line in predict(found, options.files, top=options.top, num_steps=options.steps, output=options.output):
        print(json.dumps(line.facts) if options.json else line.text)
