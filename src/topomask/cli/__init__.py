"""The command line: thin verbs, which import what they need when they run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import topomask
from topomask.cli import bench, mask


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of ``topomask`` and of ``python -m topomask``."""
    parser = argparse.ArgumentParser(prog="topomask", description="Masked linear attention on graphs.")
    parser.add_argument("--version", action="version", version=f"topomask {topomask.__version__}")
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="verb")

    demo_parser = verbs.add_parser("demo", help="a minute's tour with pictures")
    demo_parser.add_argument("--output", type=Path, default=Path("demo_output"), help="folder of the pictures")
    demo_parser.set_defaults(run=_demo)

    bench_parser = verbs.add_parser("bench", help="run benchmarks (from a checkout)")
    bench.add_arguments(bench_parser)
    bench_parser.set_defaults(run=bench.run)

    mask_parser = verbs.add_parser("mask", help="draw a mask on a graph")
    mask.add_arguments(mask_parser)
    mask_parser.set_defaults(run=mask.run)

    options = parser.parse_args(arguments)
    options.run(options)


def _demo(options: argparse.Namespace) -> None:
    try:
        from topomask.recipes import demo
    except ModuleNotFoundError as error:
        raise SystemExit(f"The demo needs {error.name}. Install it with: pip install 'topomask[plot]'") from None
    demo.main(options.output)
