"""``topomask list``: what there is, by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from tyro.conf import Positional

from topomask.cli.checkout import find_checkout, import_from_checkout

Kind = Literal["recipes", "attention", "data", "masks", "graphs", "studies", "all"]
KINDS = get_args(Kind)[:-1]


def run(kind: Positional[Kind] = "all") -> None:
    """List what there is: recipes, kinds of attention, data sets, masks, graphs, studies.

    Args:
        kind: One of these.
    """
    for each in _all_kinds() if kind == "all" else (kind,):
        try:
            lines = list(_lines(each))
        except ModuleNotFoundError as error:
            if kind != "all":
                raise
            # The other kinds are listed all the same.
            lines = [("(not listed)", str(error))]
        print(f"{each}:")
        for name, about in lines:
            print(f"  {name:22s} {about}")
        print()


def _all_kinds() -> Iterable[str]:
    return KINDS if find_checkout() is not None else (kind for kind in KINDS if kind != "studies")


def _lines(kind: str) -> Iterable[tuple[str, str]]:
    if kind == "studies":
        return import_from_checkout("experiments.reproduce.registry").catalogue()
    from topomask.recipes.catalogue import catalogue

    return catalogue(kind)
