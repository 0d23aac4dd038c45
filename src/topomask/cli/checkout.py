"""``topomask demo`` and ``topomask bench``, and other modules that only a checkout has."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from tyro.conf import Positional

import topomask
from topomask.support.imports import EXTRAS, need


def import_from_checkout(name: str) -> Any:
    """Import a module of ``benchmarks`` or ``experiments``, such as ``"experiments.demo"``, from the checkout."""
    root = find_checkout()
    if root is None:
        raise FileNotFoundError(
            f"This command runs `{name}`, which is part of a checkout of topomask but is not installed with it. "
            "Neither the current folder nor the installed package is a checkout. Change into a checkout, or install "
            "one with: pip install --editable ."
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in EXTRAS:
            need(package, f"`{name}`")
        raise


def find_checkout() -> Path | None:
    """Find the checkout: the current folder, or else that of an editable install."""
    for root in (Path.cwd(), Path(topomask.__file__).parents[2]):
        if all((root / part / "__init__.py").is_file() for part in ("benchmarks", "experiments", "src/topomask")):
            return root
    return None


def demo(*, output: Path = Path("demo_output")) -> None:
    """Run a two-minute tour, and write a report with pictures. Needs a checkout.

    Args:
        output: Folder for the report and pictures.
    """
    import_from_checkout("experiments.demo").main(output)


def bench(
    names: Positional[tuple[str, ...]] = (), *, list: bool = False, quick: bool = False, data: Path | None = None
) -> None:
    """Run the benchmarks of a checkout.

    Args:
        names: Benchmarks to run. Default: all.
        list: Only list the benchmarks.
        quick: Use small sizes, to check that they run; no bar is judged.
        data: Folder of data sets. Default: $TOPOMASK_DATA.
    """
    if list and (names or quick):
        raise SystemExit("--list lists all benchmarks and runs none. Leave out names and --quick.")
    if data is not None:
        if not data.is_dir():
            raise SystemExit(f"--data must be a folder of data sets, but {data} is not a folder.")
        os.environ["TOPOMASK_DATA"] = str(data.resolve())
    registry = import_from_checkout("benchmarks.__main__")
    if list:
        registry.show()
    else:
        registry.run([*names], quick=quick)
