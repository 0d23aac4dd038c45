"""Checks of arguments, with suggestions for names that do not exist."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

_Named = TypeVar("_Named")


def nearest(name: str, known: Iterable[str], cutoff: float = 0.4) -> str | None:
    """Return the most similar known name, ignoring case, or None if none reaches the ``cutoff`` (0 to 1)."""
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=cutoff)
    return by_lower[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str], quote: Callable[[str], str] = repr) -> str:
    """Return a hint with the nearest known name; empty if no name is near, or if ``name`` is known.

    Example:
        >>> did_you_mean("digit", ["digits", "mnist"])
        " Did you mean 'digits'?"
    """
    known = list(known)
    close = None if name in known else nearest(name, known)
    return "" if close is None else f" Did you mean {quote(close)}?"


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


def check_options(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise a ValueError about ``what`` if one of the ``given`` options is not ``known``.

    Example:
        >>> check_options("mask 'degree'", ["max_degre"], ["max_degree", "z"])
        Traceback (most recent call last):
        ValueError: mask 'degree' has no option `max_degre`. Did you mean `max_degree`? It takes: max_degree, z.
    """
    known = list(known)
    for option in given:
        if option not in known:
            hint = did_you_mean(option, known, quote="`{}`".format)
            takes = f"It takes: {', '.join(known)}." if known else "It takes none; leave it out."
            raise ValueError(f"{what} has no option `{option}`.{hint} {takes}")


def look_up(known: Mapping[str, _Named], kind: str, name: str) -> _Named:
    """Return ``known[name]``, or raise a ValueError that suggests the nearest name.

    Example:
        >>> look_up({"digits": 1, "mnist": 2}, "recipe", "digit")
        Traceback (most recent call last):
        ValueError: There is no recipe 'digit'. Did you mean digits? There are: digits, mnist.
    """
    if name not in known:
        hint = did_you_mean(name, known, quote=str)
        raise ValueError(f"There is no {kind} {name!r}.{hint} There are: {', '.join(known)}.")
    return known[name]
