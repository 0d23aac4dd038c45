"""What a checkout has beside the package: benchmarks, the papers' tables and figures, and the demo."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import topomask
from topomask.support.imports import EXTRAS, need


def import_from_checkout(name: str) -> Any:
    """A module of the checkout's ``benchmarks`` or ``experiments``.

    Args:
        name: Its full name, such as ``"experiments.demo"``.

    Raises:
        FileNotFoundError: There is no checkout.
    """
    root = find_checkout()
    if root is None:
        raise FileNotFoundError(
            f"This command runs `{name}`, which is part of a checkout of topomask and is not installed with it. There "
            "is no checkout in the current folder, nor where topomask is installed. Change into a checkout, or install "
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
    """The checkout in the current folder, or else the one that an editable install points at."""
    for root in (Path.cwd(), Path(topomask.__file__).parents[2]):
        if all((root / part / "__init__.py").is_file() for part in ("benchmarks", "experiments", "src/topomask")):
            return root
    return None
