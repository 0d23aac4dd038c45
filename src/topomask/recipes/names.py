"""Names that a user gives: the one that was meant, where there is none of that name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

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
        raise ValueError(f"There is no {kind} {name!r}.{did_you_mean(name, known)} There are: {', '.join(known)}.")
    return known[name]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question with the nearest name, or nothing where none is near."""
    close = difflib.get_close_matches(name, list(known), 1, cutoff=0.4)
    return f" Did you mean {close[0]}?" if close else ""
