"""What there is, by name, with a line on each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from topomask.data import ENTRIES, MOTIFS, NODE_SETS, TU_SETS
from topomask.models.attention_variants import VARIANTS
from topomask.recipes.named_graphs import BUILDERS
from topomask.recipes.named_masks import MASKS
from topomask.recipes.registry import RECIPES
from topomask.recipes.reproduce.registry import GROUPS, STUDIES


def catalogue(kind: str) -> Iterator[tuple[str, str]]:
    """Names and lines of recipes, attention, data, masks, graphs or studies."""
    yield from _CATALOGUES[kind]()


def _first_lines(functions: Mapping[str, Callable[[], Any]]) -> list[tuple[str, str]]:
    return [(name, (inspect.getdoc(function) or "").partition("\n")[0]) for name, function in functions.items()]


def _study_line(make: Callable[[], Any]) -> str:
    """Tables of many sets are made by one function, so their titles say more than its docstring."""
    return make().title if isinstance(make, partial) else (inspect.getdoc(make) or "").partition("\n")[0]


_CATALOGUES: dict[str, Callable[[], list[tuple[str, str]]]] = {
    "recipes": lambda: _first_lines(RECIPES),
    "attention": lambda: [(name, variant.about) for name, variant in VARIANTS.items()],
    "data": lambda: [
        *((name, entry.summary) for name, entry in ENTRIES.items()),
        *((name, f"{tu.num_graphs:,} graphs in {tu.num_classes} classes, TUDataset") for name, tu in TU_SETS.items()),
        *((name, f"generated graphs with and without the motif {name}") for name in MOTIFS),
        *((name, f"one graph: {entry.summary}") for name, entry in NODE_SETS.items()),
    ],
    "masks": lambda: [(name, recipe.about) for name, recipe in MASKS.items()],
    "graphs": lambda: [(f"{name}:{each.example}", each.about) for name, each in BUILDERS.items()],
    "studies": lambda: [
        *((name, _study_line(make)) for name, make in STUDIES.items()),
        *((name, ", ".join(parts)) for name, parts in GROUPS.items()),
    ],
}
