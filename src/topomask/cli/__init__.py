"""The command line: thin verbs, which import what they need when they run."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

import topomask

# Every verb: its module, and what it does. Only the module of the verb that is asked for is imported.
VERBS = {
    "demo": ("demo", "a tour of two minutes with a report (from a checkout)"),
    "train": ("train", "train by a recipe"),
    "eval": ("evaluate", "evaluate a model that was trained"),
    "predict": ("predict", "classify pictures and videos, follow particles"),
    "reproduce": ("reproduce", "tables and figures of the papers (from a checkout)"),
    "mask": ("mask", "draw a mask on a graph"),
    "bench": ("bench", "run benchmarks (from a checkout)"),
    "doctor": ("doctor", "versions, backends and a self-test"),
    "list": ("listing", "recipes, kinds of attention, data sets, masks, graphs, studies"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of ``topomask`` and of ``python -m topomask``."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(prog="topomask", description="Masked linear attention on graphs.")
    parser.add_argument("--version", action="version", version=f"topomask {topomask.__version__}")
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="verb")
    for name, (home, about) in VERBS.items():
        verb = verbs.add_parser(name, help=about)
        if name in arguments:
            module = importlib.import_module(f"topomask.cli.{home}")
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
