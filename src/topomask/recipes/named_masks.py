"""Masks by name, with options as text. Nothing heavy is imported before a mask is built."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import topomask as tm
from topomask.near_names import did_you_mean
from topomask.recipes.names import look_up

if TYPE_CHECKING:
    from topomask.recipes.named_graphs import NamedGraph


@dataclass(frozen=True)
class MaskRecipe:
    """How a mask is built on a graph.

    The first argument of its class says by its name what of the graph it takes: ``graph``, ``num_nodes``, the ``shape``
    of a grid, or the ``dim`` of a hypercube.

    Attributes:
        class_name: Its name in ``topomask``.
        about: A few words for the list of masks.
        defaults: Arguments that the class has no default for, or a better one for pictures, given those that are set.
        maker: The method that builds it, where it is not the class itself.
    """

    class_name: str
    about: str
    defaults: Callable[[dict[str, Any]], dict[str, Any]] = lambda _: {}
    maker: str | None = None


# One line per mask.
MASKS: dict[str, MaskRecipe] = {
    "walk": MaskRecipe("WalkMask", "graph random features, a power series estimated by random walks"),
    "power-series": MaskRecipe(
        "PowerSeriesMask", "exact power series", lambda _: {"coefficients": tm.series.heat(10, time=2.0)}
    ),
    "visit": MaskRecipe("VisitMask", "overlap of visit frequencies"),
    "diffusion": MaskRecipe("DiffusionMask", "heat kernel of the graph", lambda _: {"time": 2.0}),
    "hypercube": MaskRecipe("HypercubeMask", "heat kernel of a hypercube"),
    "toeplitz": MaskRecipe("ToeplitzMask", "function of the offset on a grid"),
    "stochastic-position": MaskRecipe("StochasticPositionMask", "stochastic template of the lag"),
    "forest": MaskRecipe("ForestMask", "function of the distance on a tree"),
    "spanning-forest": MaskRecipe("ForestMask", "the same on a minimum spanning forest", maker="from_graph"),
    "neighbor": MaskRecipe("NeighborMask", "edges and self-loops"),
    "shortest-path": MaskRecipe("ShortestPathMask", "weight per number of hops"),
    "degree": MaskRecipe("DegreeMask", "function of both degrees", lambda settings: _rising(**settings)),
    "learned-features": MaskRecipe("LearnedFeatureMask", "free features, as they start"),
}


def _rising(max_degree: Any = 7, **_: Any) -> dict[str, Any]:
    """Numbers that rise with the degree, so that there is something to see."""
    rising = {"z": [k / (max_degree + 2) for k in range(1, max_degree + 2)]} if isinstance(max_degree, int) else {}
    return {"max_degree": max_degree} | rising


# What the first argument of a mask may ask for, and the graphs that have it.
_PLACES = {
    "graph": "any graph",
    "num_nodes": "any graph",
    "shape": "a grid, as in --graph grid:16x16",
    "dim": "a hypercube, as in --graph hypercube:6",
}


def build_mask(name: str, source: NamedGraph, settings: dict[str, Any], seed: int = 0) -> tm.Mask:
    """A mask by its name.

    Args:
        name: One of ``MASKS``.
        source: The graph.
        settings: Arguments of the mask's class.
        seed: Passed on where the class takes a seed.
    """
    recipe = look_up(MASKS, "mask", name)
    kind = getattr(tm, recipe.class_name)
    parameters = list(inspect.signature(kind).parameters.values())
    wanted, options = parameters[0].name, parameters[1:]
    place = {
        "graph": source.graph,
        "num_nodes": source.graph.num_nodes,
        "shape": source.shape,
        "dim": source.dim,
    }[wanted]
    if place is None:
        raise ValueError(f"A {recipe.class_name} needs {_PLACES[wanted]}, but the graph is {source.title}.")
    names = [option.name for option in options]
    _check_names(recipe.class_name, names, settings)
    arguments = ({"seed": seed} if "seed" in names else {}) | recipe.defaults(settings) | settings
    missing = [option.name for option in options if option.default is option.empty and option.name not in arguments]
    if missing:
        raise ValueError(f"{recipe.class_name} needs {', '.join(missing)}. Pass --set {missing[0]}=...")
    try:
        return (kind if recipe.maker is None else getattr(kind, recipe.maker))(place, **arguments)
    except TypeError as error:
        raise ValueError(f"{recipe.class_name} does not take these options ({error}): {settings}.") from error


def _check_names(class_name: str, names: Sequence[str], settings: dict[str, Any]) -> None:
    for name in settings:
        if name not in names:
            hint = did_you_mean(name, names, quote=str)
            raise ValueError(f"{class_name} has no option {name!r}.{hint} It takes: {', '.join(names)}.")


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Options ``name=value``: numbers, true, false, none, numbers with commas between them, or words.

    Example:
        >>> parse_settings(["num_walks=50", "f=1,0.5,0.25", "symmetric=false", "coupling=iid"])
        {'num_walks': 50, 'f': [1, 0.5, 0.25], 'symmetric': False, 'coupling': 'iid'}
    """
    settings: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not separator or not name.isidentifier():
            raise ValueError(f"An option must have the form name=value, as in num_walks=50, but is {text!r}.")
        if name in settings:
            raise ValueError(f"The option {name} is set twice. Set it once.")
        settings[name] = _parse(value.strip())
    return settings


def _parse(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return list(value) if isinstance(value, tuple) else value
