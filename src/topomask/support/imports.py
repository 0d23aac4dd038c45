"""Lazy imports of the names of a package, and imports of optional packages."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


def lazy_names(
    package: str, more: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Make ``__getattr__``, ``__dir__`` and ``__all__`` of a package that imports its names when they are first used.

    The names are those that the package imports under ``if TYPE_CHECKING:``, where type checkers find them too; this
    function reads them there. Modules of the package are attributes as well.

    Args:
        package: The ``__name__`` of the package.
        more: More names, each with the full name of its module.

    Example:
        >>> get, _, names = lazy_names("topomask.walks")
        >>> names[:2], get("WalkFeatures").__module__
        (['Coupling', 'Ensemble'], 'topomask.walks.features')
    """
    this = sys.modules[package]
    home_of = dict(more or {})
    for block in ast.parse(inspect.getsource(this)).body:
        if isinstance(block, ast.If):
            imports = [each for each in block.body if isinstance(each, ast.ImportFrom)]
            home_of |= {name.name: each.module or "" for each in imports for name in each.names if name.name != "*"}

    def get(name: str) -> Any:
        if home_of.get(name, package) != package:
            value = getattr(importlib.import_module(home_of[name]), name)
        elif name.startswith("_") or importlib.util.find_spec(f"{package}.{name}") is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        else:
            value = importlib.import_module(f"{package}.{name}")
        # The next access finds a plain attribute.
        setattr(this, name, value)
        return value

    return get, lambda: sorted({*vars(this), *home_of}), sorted(home_of)


class Extra(NamedTuple):
    """An optional package."""

    label: str  # its name in messages
    distribution: str  # its name for pip
    extra: str  # the extra of topomask that installs it


# By name of the imported module.
EXTRAS = {
    "PIL": Extra("Pillow", "pillow", "data"),
    "av": Extra("PyAV", "av", "video"),
    "matplotlib": Extra("matplotlib", "matplotlib", "plot"),
    "networkx": Extra("networkx", "networkx", "networkx"),
    "rich": Extra("rich", "rich", "train"),
    "safetensors": Extra("safetensors", "safetensors", "train"),
    "sklearn": Extra("scikit-learn", "scikit-learn", "data"),
    "tensorboard": Extra("TensorBoard", "tensorboard", "tensorboard"),
    "torch_geometric": Extra("PyG", "torch_geometric", "pyg"),
}


def installed(module: str) -> bool:
    """Whether a package is installed, without importing it."""
    return importlib.util.find_spec(module) is not None


def version_of(distribution: str) -> str | None:
    """The version of an installed package, by its name for pip; None if it is not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    return None


def need(module: str, purpose: str) -> Any:
    """Import a package in ``EXTRAS``, or a module in it; if missing, the error names ``purpose`` and the extra."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # If the package is installed but one of its own imports fails, keep that error.
        if error.name != package:
            raise
        label, _, extra = EXTRAS[package]
        message = f"{purpose} needs {label}, which is not installed. Install it with: pip install 'topomask[{extra}]'"
        raise ModuleNotFoundError(message, name=package) from None
