"""Masks on graphs that come again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from topomask.builders import path_graph
from topomask.graph import Graph
from topomask.masks.base import Mask
from topomask.masks.bound_walks import BoundWalks, Features, WalkRecipe
from topomask.masks.feature_mask import FeatureMask
from topomask.masks.sum import SumMask
from topomask.walks import WalkFeatures


class MaskViews:
    """Binds masks to graphs that come again, epoch after epoch, and does what it can only once.

    Walks are sampled once per graph and recipe, and kept as long as the graph is: the walks of a batch are those of its
    graphs, joined, which is bit-equal to sampling them on the batch. Masks of the same recipe share them: those of
    several layers, say, or parts of sums of masks. The views of the graph that was asked for last are kept too, so that
    one large graph is bound once; they have the parameters, buffers and modules that their masks have when they are
    asked for, but attributes of other kinds as they were.

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
        self._recipes: WeakKeyDictionary[Mask, WalkRecipe] = WeakKeyDictionary()
        self._forget_last()

    def _forget_last(self, graph: Graph | None = None) -> None:
        # A view holds its graph, so it must not be kept by that graph.
        self._last, self._views = graph, dict[tuple[Mask | WalkRecipe, ...], Mask]()
        self._bound = dict[WalkRecipe, BoundWalks]()

    # Walks are sampled by kernels that the compiler cannot look into.
    @torch.compiler.disable
    def on(self, mask: Mask, graph: Graph, parts: Sequence[Graph] | None = None) -> Mask:
        """The mask on a graph.

        Args:
            mask: The mask.
            graph: The graph, or a batch.
            parts: The graphs that it is a batch of, in their order, where these come again in other batches.
        """
        if graph is not self._last:
            self._forget_last(graph)
        key = _parts(mask)
        if key not in self._views:
            self._forget_resampled(mask)
            # Kept for training too, whatever mode asks for it first.
            with torch.inference_mode(False), torch.no_grad():
                view = self._views[key] = mask.on(graph, self._features(mask, graph, parts))
            for part in view.modules():
                if isinstance(part, FeatureMask):
                    self._bound[part.recipe] = part._walks
        _relink(self._views[key], mask)
        return self._views[key]

    def _forget_resampled(self, mask: Mask) -> None:
        """Let go of walks of a recipe that no mask has any more, as when masks draw new walks in every epoch."""
        for part in mask.modules():
            if isinstance(part, FeatureMask):
                old, self._recipes[part] = self._recipes.get(part), part.recipe
                if old is not None and old not in self._recipes.values():
                    for kept in self._walks.values():
                        kept.pop(old, None)
                    self._bound.pop(old, None)
                    self._views = {key: view for key, view in self._views.items() if old not in key}

    def _features(self, mask: Mask, graph: Graph, parts: Sequence[Graph] | None) -> Any:
        """The walks that ``mask.on(graph, ...)`` takes; None for a mask that does not walk."""
        if isinstance(mask, FeatureMask):
            return self._bound.get(mask.recipe) or self.walks(mask.recipe, graph, parts)
        if isinstance(mask, SumMask):
            found = [self._features(part, graph, parts) for part in mask._parts()]
            return None if all(own is None for own in found) else found
        return None

    def walks(self, recipe: WalkRecipe, graph: Graph, parts: Sequence[Graph] | None = None) -> Features:
        """Walks on a graph, sampled once; on a batch of parts, once for every part."""
        kept = self._walks.setdefault(graph, {})
        if recipe not in kept:
            kept[recipe] = recipe.sample(graph) if parts is None else self._joined(recipe, graph, parts)
        return kept[recipe]

    def _joined(self, recipe: WalkRecipe, graph: Graph, parts: Sequence[Graph]) -> Features:
        _check_parts(graph, parts)
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


def check_movable(mask: Mask, instead: str) -> None:
    """A ValueError where a mask cannot be moved to other graphs, which is tried.

    Args:
        mask: The mask.
        instead: What to take instead, for the error.
    """
    what = f"`mask` is a {type(mask).__name__}, which cannot be moved to the graph of every call"
    try:
        moved = mask.on(path_graph(3))
    except ValueError as error:
        raise ValueError(f"{what}: {error} {instead}") from None
    if (moved.num_queries, moved.num_keys) != (3, 3):
        raise ValueError(f"{what}: on 3 nodes it is {moved.num_queries} x {moved.num_keys}. {instead}")


def _sides(walks: Features) -> tuple[WalkFeatures, ...]:
    """Those of the queries, and those of the keys where they have their own."""
    return walks if isinstance(walks, tuple) else (walks,)


def _features(sides: list[WalkFeatures]) -> Features:
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])


def _parts(mask: Mask) -> tuple[Mask | WalkRecipe, ...]:
    """A mask and those that it is made of, and how they walk: what a view is bound anew for."""
    parts = [part for part in mask.modules() if isinstance(part, Mask)]
    return (*parts, *(part.recipe for part in parts if isinstance(part, FeatureMask)))


def _relink(view: nn.Module, mask: nn.Module) -> None:
    """Give a view the parameters that its mask has now: some ways to load or to try weights replace them."""
    view._parameters.update(mask._parameters)
    view._buffers.update(mask._buffers)
    for name, part in mask._modules.items():
        own = view._modules[name]
        if isinstance(part, Mask | nn.ModuleList):
            assert own is not None
            _relink(own, part)
        else:
            view._modules[name] = part


def _check_parts(graph: Graph, parts: Sequence[Graph]) -> None:
    """A ValueError unless the graph is a batch of these parts, with the number of the first part that differs."""
    num_nodes = sum(part.num_nodes for part in parts)
    if num_nodes != graph.num_nodes:
        raise ValueError(
            f"`parts` must be the graphs of the batch, but have {num_nodes} nodes where it has {graph.num_nodes}. "
            "Pass what Graph.batch was called with."
        )
    node = _first_difference(graph, Graph.batch(parts))
    if node < num_nodes:
        first = int(np.searchsorted(np.cumsum([part.num_nodes for part in parts]), node, side="right"))
        raise ValueError(
            f"`parts` must be the graphs of the batch in their order, but number {first}, {parts[first]}, is not what "
            "the batch has there. Pass what Graph.batch was called with."
        )


def _first_difference(first: Graph, second: Graph) -> int:
    """The first node of two graphs of one size that has another place, or other edges; their number if none has."""
    places = (first.graph_index != second.graph_index) | (first.ids != second.ids)
    rows = places | (np.diff(first.indptr) != np.diff(second.indptr))
    node = int(rows.argmax()) if rows.any() else first.num_nodes
    # Up to there, entries stand in the same rows.
    count = first.indptr[node]
    entries = (first.indices[:count] != second.indices[:count]) | (first.weights[:count] != second.weights[:count])
    return int(np.searchsorted(first.indptr, entries.argmax(), side="right")) - 1 if entries.any() else node
