"""What a user gives the name of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from topomask.support.near_names import did_you_mean

_Named = TypeVar("_Named")


def look_up(known: Mapping[str, _Named], kind: str, name: str) -> _Named:
    """What has this name; a ValueError with the nearest name where nothing has.

    Args:
        known: All there is, by name.
        kind: What it is, for the message.
        name: The name.

    Example:
        >>> look_up({"digits": 1, "mnist": 2}, "recipe", "digit")
        Traceback (most recent call last):
        ValueError: There is no recipe 'digit'. Did you mean digits? There are: digits, mnist.
    """
    if name not in known:
        hint = did_you_mean(name, known, quote=str)
        raise ValueError(f"There is no {kind} {name!r}.{hint} There are: {', '.join(known)}.")
    return known[name]
