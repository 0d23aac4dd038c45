"""Shared by configs and options of models: fields that are set, field descriptions, and names of masks."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Collection
from typing import Any, Self, TypeVar

_Class = TypeVar("_Class")


class Options:
    """Base class of dataclasses whose fields are None by default."""

    def given(self) -> dict[str, Any]:
        """Return the fields that are not None."""
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in fields.items() if value is not None}

    def only(self, names: Collection[str]) -> Self:
        """Return a copy with only these fields."""
        return type(self)(**{name: value for name, value in self.given().items() if name in names})


def build_model(model: type[_Class], config: Options) -> _Class:
    """Build a model from its config; fields that are None take the default of the model."""
    arguments = config.given()
    for name, parameter in inspect.signature(model).parameters.items():
        if parameter.default is parameter.empty and name not in arguments:
            raise ValueError(f"`{name}` is None. Set it, or train with a recipe, which takes it from the data.")
    return model(**arguments)


def fields_of(model: type) -> Callable[[type[_Class]], type[_Class]]:
    """Describe the fields of a config, for ``help`` and the command line, with the arguments of its model."""

    def decorate(config: type[_Class]) -> type[_Class]:
        text = (inspect.getdoc(model) or "").partition("Args:\n")[2].partition("\n\n")[0]
        # Without the markup of Sphinx.
        text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`|``", r"\1", text)
        config.__doc__ = f"{config.__doc__}\n\nAttributes:\n{text}"
        return config

    return decorate


def known_name(name: Any, names: Collection[str]) -> Any:
    """Return "grf" or "walk", whichever is in ``names``: the paper's name and the mask's name of the same thing."""
    other = {"grf": "walk", "walk": "grf"}.get(name) if isinstance(name, str) else None
    return other if other in names and name not in names else name
