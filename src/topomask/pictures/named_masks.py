"""Masks by name, with options as text. Torch is imported only when a mask is built."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from topomask.masks.registry import ON_GRAPHS
from topomask.support.checks import check_options, look_up

if TYPE_CHECKING:
    from topomask.masks import Mask
    from topomask.pictures.named_graphs import NamedGraph

# The graphs that masks need which do not work on all of them.
_PLACES = {"shape": "a grid, as in --graph grid:16x16", "dim": "a hypercube, as in --graph hypercube:6"}


def build_mask(name: str, source: NamedGraph, settings: dict[str, Any], seed: int = 0) -> Mask:
    """Build a mask of :data:`topomask.masks.registry.ON_GRAPHS` with `settings`, the arguments of its class."""
    entry = look_up(ON_GRAPHS, "mask", name)
    graph = source.graph
    places = {"graph": graph, "num_nodes": graph.num_nodes, "shape": source.shape, "dim": source.dim}
    if places[entry.place] is None:
        raise ValueError(f"mask {name!r} needs {_PLACES[entry.place]}, but the graph is {source.title}.")
    options = entry.options()
    check_options(f"mask {name!r}", settings, options)
    picture = {} if entry.picture.keys() & settings.keys() else dict(entry.picture)
    arguments = ({"seed": seed} if "seed" in options else {}) | picture | settings
    missing = [each.name for each in options.values() if each.default is each.empty and each.name not in arguments]
    if missing:
        raise ValueError(f"mask {name!r} needs {', '.join(missing)}. Pass --set {missing[0]}=...")
    try:
        mask: Mask = entry.load()(places[entry.place], **arguments)
    except TypeError as error:
        raise ValueError(f"mask {name!r} does not accept these options ({error}): {settings}.") from error
    return mask


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Parse options ``name=value``, where a value is a number, true, false, none, a comma-separated list, or a word.

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
            raise ValueError(f"The option {name} is given twice. Give it once.")
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
