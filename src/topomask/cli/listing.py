"""``topomask list``: list everything that has a name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from tyro.conf import Positional

from topomask.cli.checkout import find_checkout, import_from_checkout

Kind = Literal["recipes", "attention", "data", "masks", "graphs", "studies", "all"]
KINDS = get_args(Kind)[:-1]


def run(kind: Positional[Kind] = "all") -> None:
    """List recipes, kinds of attention, data sets, masks, graphs and studies.

    Args:
        kind: What to list.
    """
    # Only a checkout has studies.
    everything = KINDS if find_checkout() is not None else [each for each in KINDS if each != "studies"]
    for each in everything if kind == "all" else (kind,):
        try:
            lines = list(_lines(each))
        except ModuleNotFoundError as error:
            if kind != "all":
                raise
            # Still list the other kinds.
            lines = [("(not listed)", str(error))]
        print(f"{each}:")
        for name, about in lines:
            print(f"  {name:22s} {about}")
        print()


def _lines(kind: str) -> Iterable[tuple[str, str]]:
    if kind == "studies":
        return import_from_checkout("experiments.reproduce.registry").catalogue()
    from topomask.recipes.catalogue import catalogue

    return catalogue(kind)
