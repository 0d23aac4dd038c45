"""The command line: thin verbs, which import what they need when they run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import topomask
from topomask.cli import bench, doctor, evaluate, listing, mask, predict, reproduce, train
from topomask.cli.failures import plain_failures

_VERBS: dict[str, tuple[ModuleType, str]] = {
    "train": (train, "train by a recipe"),
    "eval": (evaluate, "evaluate a model that was trained"),
    "predict": (predict, "classify pictures and videos, follow particles"),
    "reproduce": (reproduce, "tables and figures of the papers"),
    "mask": (mask, "draw a mask on a graph"),
    "bench": (bench, "run benchmarks (from a checkout)"),
    "doctor": (doctor, "versions, backends and a self-test"),
    "list": (listing, "recipes, kinds of attention, data sets, masks, graphs, studies"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of ``topomask`` and of ``python -m topomask``."""
    parser = argparse.ArgumentParser(prog="topomask", description="Masked linear attention on graphs.")
    parser.add_argument("--version", action="version", version=f"topomask {topomask.__version__}")
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="verb")

    demo_parser = verbs.add_parser("demo", help="a tour of two minutes with a report")
    demo_parser.add_argument("--output", type=Path, default=Path("demo_output"), help="folder of report and pictures")
    demo_parser.set_defaults(run=_demo)
    for name, (module, about) in _VERBS.items():
        verb = verbs.add_parser(name, help=about)
        module.add_arguments(verb)
        verb.set_defaults(run=module.run)

    options, rest = parser.parse_known_args(arguments)
    # Fields may also stand behind options.
    fields = [part for part in rest if hasattr(options, "overrides") and not part.startswith("-")]
    if len(fields) < len(rest):
        parser.error(f"unrecognized arguments: {' '.join(part for part in rest if part not in fields)}")
    if fields:
        options.overrides += fields
    options.run(options)


@plain_failures
def _demo(options: argparse.Namespace) -> None:
    from topomask.recipes import demo

    demo.main(options.output)
