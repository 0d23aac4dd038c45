"""What can be reproduced, by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from topomask.recipes.reproduce import dynamics, images
from topomask.recipes.reproduce.study import Study

STUDIES: dict[str, Callable[[], Study]] = {
    "digits": images.digits,
    "table1": images.table1,
    "table1-tiny-imagenet": images.tiny_imagenet,
    "table3": images.table3,
    "fig6": images.fig6,
    "table4": dynamics.table4,
    "interlacer": dynamics.interlacer,
}


def find_study(name: str) -> Study:
    """A study by its name."""
    if name not in STUDIES:
        close = difflib.get_close_matches(name, STUDIES, 1, cutoff=0.4)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise ValueError(f"There is no study {name!r}.{hint} Studies: {', '.join(STUDIES)}.")
    return STUDIES[name]()
