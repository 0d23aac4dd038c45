"""``topomask train``: train by a recipe."""

# Annotations are values here, since the fields depend on the recipe.
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import FlagConversionOff, Suppress, arg

from topomask.cli import parse
from topomask.support.config import UsageError

GO_ON = "What was saved is whole; the same command goes on with --resume."


def command(arguments: Sequence[str]) -> Callable[[], None]:
    """Train by the recipe that is named first; what follows are its fields, and options."""
    name, *rest = arguments or [""]
    kind: Any = Annotated[None, Suppress]
    experiment: Any = None
    if name in ("-h", "--help"):
        name, rest = "RECIPE", [name]
    elif not name or name.startswith("-"):
        raise UsageError("Name the recipe first, as in topomask train digits. Run topomask list recipes for all.")
    else:
        from topomask.recipes.registry import RECIPES, recipe
        from topomask.support.near_names import look_up

        try:
            look_up(RECIPES, "recipe", name)
        except ValueError as error:
            raise UsageError(str(error)) from None
        experiment = recipe(name)
        kind = Annotated[type(experiment), FlagConversionOff]

    def run(
        *,
        config: Annotated[kind, arg(name="")] = experiment,
        output: Path = Path("runs") / name,
        resume: bool = False,
        fallback: bool = False,
    ) -> None:
        """Train by a recipe; topomask list recipes has them all, topomask train RECIPE --help the fields of one.

        Args:
            config: The recipe.
            output: Folder of the run.
            resume: Go on with the run in that folder, if there is one.
            fallback: Where the last checkpoint is damaged, take an older one.
        """
        from topomask.recipes.experiment import train_recipe

        if fallback and not resume:
            raise UsageError("`--fallback` chooses the checkpoint that --resume goes on from. Pass --resume too.")
        train_recipe(config, output, resume=resume, fallback=fallback)

    return parse(run, rest, f"topomask train {name}")
