"""Optional packages, imported when they are first needed."""

from __future__ import annotations

import importlib
from typing import Any


def need(module: str, package: str, extra: str, purpose: str) -> Any:
    """The module, or an error that says what needs it and how to install it.

    Args:
        module: What to import.
        package: The name of the package, for the message.
        extra: The extra of topomask that installs it.
        purpose: What needs it, the start of a sentence.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A module that is missing inside an installed package is another problem, and keeps its own message.
        if error.name != module.partition(".")[0]:
            raise
        raise ModuleNotFoundError(
            f"{purpose} needs {package}, which is not installed. Install it with: pip install 'topomask[{extra}]'",
            name=error.name,
        ) from None
