"""``topomask list``: what there is, by name."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from topomask.cli import plain_failures
from topomask.cli.checkout import find_checkout, import_from_checkout

KINDS = ("recipes", "attention", "data", "masks", "graphs", "studies")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the verb takes."""
    parser.description = "List what there is: recipes, kinds of attention, data sets, masks, graphs, studies."
    parser.add_argument("kind", nargs="?", choices=KINDS, help="default: all")


@plain_failures
def run(options: argparse.Namespace) -> None:
    """Print names with a line on each."""
    for kind in _all_kinds() if options.kind is None else (options.kind,):
        lines = _lines(kind)
        print(f"{kind}:")
        for name, about in lines:
            print(f"  {name:22s} {about}")
        print()


def _all_kinds() -> tuple[str, ...]:
    return KINDS if find_checkout() is not None else tuple(kind for kind in KINDS if kind != "studies")


def _lines(kind: str) -> Iterable[tuple[str, str]]:
    if kind == "studies":
        return import_from_checkout("experiments.reproduce.registry").catalogue()
    from topomask.recipes.catalogue import catalogue

    return catalogue(kind)
