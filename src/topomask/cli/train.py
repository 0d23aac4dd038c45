"""``topomask train``: train by a recipe."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from topomask.cli import plain_failures


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the verb takes."""
    parser.description = "Train by a recipe; topomask list recipes has them all."
    parser.add_argument("recipe", help="name of the recipe, such as digits")
    parser.add_argument("overrides", nargs="*", metavar="field=value", help="fields to set, such as train.epochs=5")
    parser.add_argument("--output", type=Path, help="folder of the run; default: runs/<recipe>")
    parser.add_argument("--resume", action="store_true", help="go on with the run in that folder, if there is one")
    parser.add_argument(
        "--fallback", action="store_true", help="where the last checkpoint is damaged, take an older one"
    )
    parser.add_argument("--fields", action="store_true", help="list the fields that can be set, and stop")


@partial(plain_failures, go_on="What was saved is whole; the same command goes on with --resume.")
def run(options: argparse.Namespace) -> None:
    """Train, and draw what happened."""
    from topomask.recipes.experiment import train_recipe
    from topomask.recipes.registry import recipe
    from topomask.support.config import apply_overrides, field_table

    experiment = apply_overrides(recipe(options.recipe), options.overrides)
    if options.fields:
        print(field_table(experiment))
        return
    if options.fallback and not options.resume:
        raise ValueError("`--fallback` chooses the checkpoint that --resume goes on from. Pass --resume too.")
    folder = Path("runs") / options.recipe if options.output is None else options.output
    train_recipe(experiment, folder, resume=options.resume, fallback=options.fallback)
