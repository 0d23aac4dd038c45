"""Masks on graphs that come again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from topomask.graph import Graph
from topomask.masks.base import Mask
from topomask.masks.bound_walks import BoundWalks, Features, WalkRecipe
from topomask.masks.feature_mask import FeatureMask
from topomask.walks import WalkFeatures


class MaskViews:
    """Binds masks to graphs that come again, epoch after epoch, and does what it can only once.

    Walks are sampled once per graph and recipe, and kept as long as the graph is: the walks of a batch are those of its
    graphs, joined, which is bit-equal to sampling them on the batch. Masks of the same recipe, in several layers, say,
    share them. The views of the graph that was asked for last are kept too, so that one large graph is bound once.

    Example:
        >>> import topomask as tm
        >>> graphs = [tm.cycle_graph(5), tm.path_graph(3)]
        >>> mask = tm.WalkMask(tm.path_graph(1), num_walks=2, max_length=2, symmetric=False)
        >>> views = MaskViews()
        >>> views.on(mask, tm.Graph.batch(graphs), graphs).num_queries
        8
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything, as when masks move to another device."""
        self._walks: WeakKeyDictionary[Graph, dict[WalkRecipe, Features]] = WeakKeyDictionary()
        self._forget_last()

    def _forget_last(self, graph: Graph | None = None) -> None:
        # A view holds its graph, so it must not be kept by that graph.
        self._last, self._views = graph, dict[tuple[int, WalkRecipe | None], Mask]()
        self._bound = dict[WalkRecipe, BoundWalks]()

    def on(self, mask: Mask, graph: Graph, parts: Sequence[Graph] | None = None) -> Mask:
        """The mask on a graph.

        Args:
            mask: The mask; it must live as long as this object, or until :meth:`clear`.
            graph: The graph, or a batch.
            parts: The graphs that it is a batch of, where these come again in other batches.
        """
        if graph is not self._last:
            self._forget_last(graph)
        recipe = mask.recipe if isinstance(mask, FeatureMask) else None
        key = (id(mask), recipe)
        if key not in self._views:
            self._views[key] = mask.on(graph) if recipe is None else self._on_walks(mask, recipe, graph, parts)
        return self._views[key]

    def _on_walks(self, mask: Mask, recipe: WalkRecipe, graph: Graph, parts: Sequence[Graph] | None) -> Mask:
        if recipe in self._bound:
            return mask.on(graph, self._bound[recipe])
        view = mask.on(graph, self.walks(recipe, graph, parts))
        assert isinstance(view, FeatureMask)
        self._bound[recipe] = view._walks
        return view

    def walks(self, recipe: WalkRecipe, graph: Graph, parts: Sequence[Graph] | None = None) -> Features:
        """Walks on a graph, sampled once; on a batch of parts, once for every part."""
        kept = self._walks.setdefault(graph, {})
        if recipe not in kept:
            alone = parts is None or len(parts) == 1
            kept[recipe] = recipe.sample(graph) if alone else self._joined(recipe, graph, parts or ())
        return kept[recipe]

    def _joined(self, recipe: WalkRecipe, graph: Graph, parts: Sequence[Graph]) -> Features:
        num_nodes = sum(part.num_nodes for part in parts)
        if num_nodes != graph.num_nodes:
            raise ValueError(
                f"`parts` must be the graphs of the batch, but have {num_nodes} nodes where it has "
                f"{graph.num_nodes}. Pass what Graph.batch was called with."
            )
        # By identity, which is how graphs are told apart: one may come twice.
        new = list({part: None for part in parts if recipe not in self._walks.get(part, ())})
        if new:
            # All at once: what is to be done around the walks of one small graph takes longer than they do.
            together = graph if new == list(parts) else Graph.batch(new)
            sampled = recipe.sample(together)
            sizes = [part.num_nodes for part in new]
            sides = [side.split(sizes) for side in _sides(sampled)]
            for part, *walks in zip(new, *sides, strict=True):
                self._walks.setdefault(part, {})[recipe] = _features(walks)
            if together is graph:
                return sampled
        found = [_sides(self._walks[part][recipe]) for part in parts]
        return _features([WalkFeatures.batch(side) for side in zip(*found, strict=True)])

    def __deepcopy__(self, memo: dict[int, Any]) -> MaskViews:
        """Empty: what is kept belongs to the masks it was made for."""
        return MaskViews()

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.clear()


def _sides(walks: Features) -> tuple[WalkFeatures, ...]:
    """Those of the queries, and those of the keys where they have their own."""
    return walks if isinstance(walks, tuple) else (walks,)


def _features(sides: list[WalkFeatures]) -> Features:
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])
