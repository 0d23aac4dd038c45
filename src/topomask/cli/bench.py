"""``topomask bench``: run the benchmarks of a checkout."""

from __future__ import annotations

import os
from pathlib import Path

from tyro.conf import Positional

from topomask.cli.checkout import import_from_checkout


def run(
    names: Positional[tuple[str, ...]] = (), *, list: bool = False, quick: bool = False, data: Path | None = None
) -> None:
    """Run the benchmarks of a checkout.

    Args:
        names: Which benchmarks to run; by default all.
        list: List the benchmarks and stop.
        quick: Small sizes, to see that they run; no bar is judged.
        data: Folder of data sets; None is $TOPOMASK_DATA.
    """
    if list and (names or quick):
        raise SystemExit("--list lists all benchmarks and runs none. Leave out names and --quick.")
    if data is not None:
        if not data.is_dir():
            raise SystemExit(f"--data must be a folder of data sets, but {data} is none.")
        os.environ["TOPOMASK_DATA"] = str(data.resolve())
    registry = import_from_checkout("benchmarks.__main__")
    if list:
        registry.show()
    else:
        registry.run([*names], quick=quick)
