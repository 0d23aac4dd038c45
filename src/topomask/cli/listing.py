"""``topomask list``: what there is, by name."""

from __future__ import annotations

import argparse

from topomask.cli.failures import plain_failures

KINDS = ("recipes", "attention", "data", "masks", "graphs", "studies")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the verb takes."""
    parser.description = "List what there is: recipes, kinds of attention, data sets, masks, graphs, studies."
    parser.add_argument("kind", nargs="?", choices=KINDS, help="default: all")


@plain_failures
def run(options: argparse.Namespace) -> None:
    """Print names with a line on each."""
    from topomask.recipes.catalogue import catalogue

    for kind in KINDS if options.kind is None else (options.kind,):
        print(f"{kind}:")
        for name, about in catalogue(kind):
            print(f"  {name:22s} {about}")
        print()
