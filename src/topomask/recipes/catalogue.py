"""Names and one-line descriptions for ``topomask list``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

from topomask.data import ENTRIES, MOTIFS, NODE_SETS, TU_SETS
from topomask.masks.registry import ON_GRAPHS
from topomask.models.attention_variants import VARIANTS
from topomask.pictures.named_graphs import BUILDERS
from topomask.recipes.registry import RECIPES, find_recipe


def catalogue(kind: str) -> Iterator[tuple[str, str]]:
    """Names and descriptions of recipes, attention, data, masks or graphs."""
    yield from _CATALOGUES[kind]()


_CATALOGUES: dict[str, Callable[[], list[tuple[str, str]]]] = {
    "recipes": lambda: [(name, (inspect.getdoc(find_recipe(name)) or "").partition("\n")[0]) for name in RECIPES],
    "attention": lambda: [(name, variant.about) for name, variant in VARIANTS.items()],
    "data": lambda: [
        *((name, entry.summary) for name, entry in ENTRIES.items()),
        *((name, f"{tu.num_graphs:,} graphs in {tu.num_classes} classes, TUDataset") for name, tu in TU_SETS.items()),
        *((name, f"generated graphs with and without the motif {name}") for name in MOTIFS),
        *((name, f"one graph: {entry.summary}") for name, entry in NODE_SETS.items()),
    ],
    "masks": lambda: [(name, entry.about) for name, entry in ON_GRAPHS.items()],
    "graphs": lambda: [(f"{name}:{each.example}", each.about) for name, each in BUILDERS.items()],
}
