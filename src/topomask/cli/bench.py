"""``topomask bench``: run the benchmarks of a checkout."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from topomask.cli import plain_failures
from topomask.cli.checkout import import_from_checkout


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the verb takes."""
    parser.add_argument("names", nargs="*", metavar="name", help="which benchmarks to run; default: all")
    parser.add_argument("--list", action="store_true", help="list the benchmarks and stop")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that they run; no bar is judged")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of data sets; default: $TOPOMASK_DATA")


@plain_failures
def run(options: argparse.Namespace) -> None:
    """Run the benchmarks that were asked for."""
    if options.list and (options.names or options.quick):
        raise SystemExit("--list lists all benchmarks and runs none. Leave out names and --quick.")
    if options.data is not None:
        if not options.data.is_dir():
            raise SystemExit(f"--data must be a folder of data sets, but {options.data} is none.")
        os.environ["TOPOMASK_DATA"] = str(options.data.resolve())
    registry = import_from_checkout("benchmarks.__main__")
    if options.list:
        registry.show()
    else:
        registry.run(options.names, quick=options.quick)
