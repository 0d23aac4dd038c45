"""``topomask demo``: a tour of two minutes."""

from __future__ import annotations

import argparse
from pathlib import Path

from topomask.cli import plain_failures
from topomask.cli.checkout import import_from_checkout


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the verb takes."""
    parser.description = "Take a tour of two minutes, and write its pictures and a report. Needs a checkout."
    parser.add_argument("--output", type=Path, default=Path("demo_output"), help="folder of report and pictures")


@plain_failures
def run(options: argparse.Namespace) -> None:
    """Take the tour."""
    import_from_checkout("experiments.demo").main(options.output)
