"""``topomask bench``: run the benchmarks of a checkout."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

import topomask
from topomask.cli.failures import plain_failures


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the verb takes."""
    parser.add_argument("names", nargs="*", metavar="name", help="which benchmarks to run; default: all")
    parser.add_argument("--list", action="store_true", help="list the benchmarks and stop")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that they run; no bar is judged")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of data sets; default: $TOPOMASK_DATA")


@plain_failures
def run(options: argparse.Namespace) -> None:
    """Run the benchmarks that were asked for."""
    root = find_checkout()
    if root is None:
        raise SystemExit(
            "The benchmarks are part of a checkout of topomask, and none was found: not in the current folder, nor "
            "where topomask is installed. Change into a checkout, or install one with: pip install --editable ."
        )
    sys.path.insert(0, str(root))
    if options.list and (options.names or options.quick):
        raise SystemExit("--list lists all benchmarks and runs none. Leave out names and --quick.")
    if options.data is not None:
        if not options.data.is_dir():
            raise SystemExit(f"--data must be a folder of data sets, but {options.data} is none.")
        os.environ["TOPOMASK_DATA"] = str(options.data.resolve())
    registry = importlib.import_module("benchmarks.__main__")
    if options.list:
        registry.show()
    else:
        registry.run(options.names, quick=options.quick)


def find_checkout() -> Path | None:
    """The checkout in the current folder, or else the one that an editable install points at."""
    for root in (Path.cwd(), Path(topomask.__file__).parents[2]):
        if (root / "benchmarks" / "__main__.py").is_file() and (root / "src" / "topomask").is_dir():
            return root
    return None
