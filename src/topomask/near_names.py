"""The name that was probably meant, where there is none of that name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable


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
