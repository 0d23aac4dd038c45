"""``topomask train``: train a recipe."""

# No `from __future__ import annotations`: the annotations below are values, since the fields depend on the recipe.
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import AvoidSubcommands, FlagConversionOff, Suppress, arg

from topomask.cli import parse
from topomask.support.config import UsageError

GO_ON = "Saved checkpoints are intact; run the same command with --resume to continue."


def command(arguments: Sequence[str]) -> Callable[[], None]:
    """Parse the name of a recipe, and then its fields and the options."""
    name, *rest = arguments or [""]
    kind: Any = Annotated[None, Suppress]
    experiment: Any = None
    if name in ("-h", "--help"):
        name, rest = "RECIPE", [name]
    elif not name or name.startswith("-"):
        raise UsageError("Name the recipe first, as in topomask train digits. Run topomask list recipes to see all.")
    else:
        from topomask.recipes.registry import RECIPES, recipe
        from topomask.support.checks import look_up

        try:
            look_up(RECIPES, "recipe", name)
        except ValueError as error:
            raise UsageError(str(error)) from None
        experiment = recipe(name)
        kind = Annotated[type(experiment), AvoidSubcommands, FlagConversionOff]

    def run(
        *,
        config: Annotated[kind, arg(name="")] = experiment,
        output: Path = Path("runs") / name,
        resume: bool = False,
        fallback: bool = False,
    ) -> None:
        """Train a recipe. See topomask list recipes, and topomask train RECIPE --help for its fields.

        Args:
            config: The recipe.
            output: Folder of the run.
            resume: Continue the run in that folder, if there is one.
            fallback: If the last checkpoint is damaged, use an older one.
        """
        from topomask.recipes.experiment import train_recipe

        if fallback and not resume:
            raise UsageError("`--fallback` selects the checkpoint that --resume continues from. Pass --resume too.")
        train_recipe(config, output, resume=resume, fallback=fallback)

    return parse(run, rest, f"topomask train {name}")
