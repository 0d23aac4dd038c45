"""Lazy imports of the names of a package, and imports of optional packages."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


def lazy_names(package: str, homes: Mapping[str, Sequence[str]]) -> tuple[Callable[..., Any], Callable[..., list[str]]]:
    """Make ``__getattr__`` and ``__dir__`` of a package that imports its names when they are first used.

    The package also imports the names under ``TYPE_CHECKING`` and lists them in ``__all__``.

    Args:
        package: The ``__name__`` of the package.
        homes: The names in each module. Modules of the package become names too; others are given by their full name.

    Example:
        >>> get, _ = lazy_names("topomask.support", {"imports": ("lazy_names",)})
        >>> get("lazy_names").__module__
        'topomask.support.imports'
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in home_of and name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = home_of.get(name, name)
        value = importlib.import_module(home if "." in home else f"{package}.{home}")
        if name in home_of:
            # Like `from home import name`.
            value = getattr(value, name, None) or importlib.import_module(f"{value.__name__}.{name}")
        # The next access finds a plain attribute.
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of, *(home for home in homes if "." not in home)})

    return get, names


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
