"""Imports at first use: the names of a package, and packages that need not be installed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


def lazy_names(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions ``__getattr__`` and ``__dir__`` of a package.

    The package assigns them, imports the same names under ``TYPE_CHECKING``, and lists them in ``__all__``.

    Args:
        package: The package, which passes its ``__name__``.
        homes: Names, by the module that they live in, or are a module of. Modules of the package are names too; any
            other is written in full.

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
            # As `from home import name` does.
            value = getattr(value, name, None) or importlib.import_module(f"{value.__name__}.{name}")
        # The next access finds it as a plain attribute.
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of, *(home for home in homes if "." not in home)})

    return get, names


class Extra(NamedTuple):
    """A package that need not be installed.

    Args:
        label: Its name in messages.
        distribution: Its name for pip.
        extra: The extra of topomask that installs it.
    """

    label: str
    distribution: str
    extra: str


# By the module that is imported.
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
    """Whether a package is installed; it is not imported."""
    return importlib.util.find_spec(module) is not None


def need(module: str, purpose: str) -> Any:
    """The module, or an error that says what needs it and how to install it.

    Args:
        module: What to import: one of ``EXTRAS``, or a module of it.
        purpose: What needs it, the start of a sentence.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A module that is missing inside an installed package is another problem, and keeps its own message.
        if error.name != package:
            raise
        label, _, extra = EXTRAS[package]
        raise ModuleNotFoundError(
            f"{purpose} needs {label}, which is not installed. Install it with: pip install 'topomask[{extra}]'",
            name=package,
        ) from None
