"""Checks of arguments that attention, layers and models share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from topomask.support.near_names import did_you_mean


def check_choice(name: str, value: Any, choices: Iterable[str], context: str = "") -> None:
    """Raise a ValueError that lists all valid names, followed by ``context``, unless ``value`` is one of them."""
    choices = tuple(choices)
    if value not in choices:
        hint = did_you_mean(value, choices) if isinstance(value, str) else ""
        raise ValueError(f"`{name}` must be one of {choices}{context}, but is {value!r}.{hint}")


def check_sizes(**sizes: int) -> None:
    """Raise a ValueError that names the first size below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"`{name}` must be at least 1, but is {size}.")


def check_probabilities(**probabilities: float) -> None:
    """Raise a ValueError that names the first dropout probability outside [0, 1)."""
    for name, p in probabilities.items():
        if not 0 <= p < 1:
            raise ValueError(f"`{name}` must lie in [0, 1), but is {p}.")
