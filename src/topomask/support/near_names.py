"""The name that was probably meant, where there is none of that name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

_Named = TypeVar("_Named")


def nearest(name: str, known: Iterable[str], cutoff: float = 0.4) -> str | None:
    """The most similar of the names, whatever their case, or None where none is near.

    Args:
        name: The name that was given.
        known: All names.
        cutoff: How similar it must be, from 0 to 1.
    """
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=cutoff)
    return by_lower[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str], quote: Callable[[str], str] = repr) -> str:
    """A question with the nearest name, to follow a sentence; nothing where none is near, or it is one of them.

    Args:
        name: The name that was given.
        known: All names.
        quote: How to write a name.

    Example:
        >>> did_you_mean("digit", ["digits", "mnist"])
        " Did you mean 'digits'?"
    """
    known = list(known)
    close = None if name in known else nearest(name, known)
    return "" if close is None else f" Did you mean {quote(close)}?"


def check_options(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """A ValueError where an option is given that there is not.

    Args:
        what: What the options are of, for the error.
        given: Names of the options that are given.
        known: Names of all that there are.

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
