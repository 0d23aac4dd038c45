"""The recipes of the features of a mask; :mod:`topomask.walks.frontier_recipe` has that of pruned frontiers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from topomask.graph import Graph, Normalization
from topomask.graph.records import Recipe
from topomask.walks.features import WalkFeatures, Weighting
from topomask.walks.record import WalkRecord, make_record
from topomask.walks.sample import SAMPLER_VERSION, Coupling, Ensemble, check_draws, check_sizes, sample_features

# Walks of queries and keys, or one set if keys have no walks of their own.
Walks = WalkFeatures | tuple[WalkFeatures, WalkFeatures]


@dataclass(frozen=True, kw_only=True)
class FeatureRecipe(Recipe):
    """The settings that, together with the graph, determine the features of a mask."""

    by_precision = True
    # Increases whenever the same settings give other features.
    version: ClassVar[int]
    # Arguments of masks with such features, for errors.
    made_by: ClassVar[str]
    # The setting that makes features larger.
    size_name: ClassVar[str]
    max_length: int
    num_heads: int
    normalization: Normalization | None
    symmetric: bool
    shared_walks: bool
    shared_heads: bool
    seed: int
    weighting: Weighting = "importance"

    def __post_init__(self) -> None:
        """Raise a ValueError if the settings fit no graph."""
        self._check()
        for name in (self.size_name, "max_length", "num_heads", "seed"):
            # NumPy integers have a different repr, which would give the recipe another name.
            object.__setattr__(self, name, int(getattr(self, name)))

    @abstractmethod
    def _check(self) -> None:
        """Raise a ValueError if the settings fit no graph."""

    @abstractmethod
    def make_side(self, graph: Graph, ensemble: Ensemble) -> WalkFeatures:
        """Compute the features of queries, or of keys that have their own."""

    @property
    def is_random(self) -> bool:
        """Whether features depend on the seed."""
        return True

    @property
    def size(self) -> int:
        """The value of the setting that makes features larger."""
        return int(getattr(self, self.size_name))

    @property
    def num_sets(self) -> int:
        """Number of independent sets of walks: one per head, or one for all."""
        return 1 if self.shared_heads else self.num_heads

    @property
    def has_key_walks(self) -> bool:
        """Whether keys have walks of their own."""
        return self.symmetric and not self.shared_walks

    @property
    def kind(self) -> tuple[Any, ...]:
        """The settings that are independent of how features are computed."""
        sharing = self.symmetric, self.shared_walks, self.shared_heads
        return self.num_heads, self.max_length, self.normalization, self.weighting, *sharing

    def make(self, graph: Graph, device: torch.device, dtype: torch.dtype) -> WalkRecord:
        """Make the record of a graph; its features are computed once for all devices and precisions."""
        return self.record_of(graph, self.find(graph), device, dtype)

    def record_of(self, graph: Graph, walks: Walks, device: torch.device, dtype: torch.dtype) -> WalkRecord:
        """Make the record of a graph from given walks, or raise a ValueError if they do not fit this recipe."""
        sides = _sides(walks)
        count = 2 if self.has_key_walks else 1
        if (isinstance(walks, tuple), len(sides)) != (count == 2, count) or not all(
            isinstance(side, WalkFeatures) for side in sides
        ):
            kind = "a pair of WalkFeatures (queries, keys)" if self.has_key_walks else "one WalkFeatures"
            raise ValueError(
                f"`walks` must be {kind} for symmetric={self.symmetric} and shared_walks={self.shared_walks}. Use "
                "mask.sample(graph)."
            )
        names = ("num_rows", "num_columns", "num_heads", "max_length", "normalization", "weighting")
        normalization = "row" if self.weighting == "visits" else graph.check_normalization(self.normalization)
        sizes = (graph.num_nodes, graph.num_nodes, self.num_sets, self.max_length)
        expected = (*sizes, normalization, self.weighting)
        for side in sides:
            found = tuple(getattr(side, name) for name in names)
            if found != expected:
                raise ValueError(
                    f"`walks` must have ({', '.join(names)}) = {expected}, but has {found}. Sample them on the same "
                    "graph with the same settings, e.g. with mask.sample(graph)."
                )
        return make_record(sides[0], sides[-1] if self.symmetric else None, graph, device, dtype)

    def sample(self, graph: Graph) -> Walks:
        """Compute the features."""
        query = self.make_side(graph, "query")
        return (query, self.make_side(graph, "key")) if self.has_key_walks else query

    def find(self, graph: Graph) -> Walks:
        """Return the features of a graph: stored ones, or else joined from those of its parts, or else computed."""
        found = self._stored(graph)
        if found is None:
            found = self._join(graph) if graph.parts else self.sample(graph)
            self._store(graph, found)
        return found

    def _stored(self, graph: Graph) -> Any:
        return getattr(graph._records, f"walks_of_{self._name}", None)

    def _store(self, graph: Graph, walks: Walks) -> None:
        graph._records.put(f"walks_of_{self._name}", self, walks)

    def _join(self, graph: Graph) -> Walks:
        """Join the walks of a batch from those of its parts, with the same bits as if sampled on the batch."""
        # Without repeats: graphs hash by identity, and one may occur twice.
        new = list({part: None for part in graph.parts if self._stored(part) is None})
        if new:
            # All at once, since the overhead of sampling a small graph exceeds the time of its walks.
            together = graph if new == list(graph.parts) else Graph.batch(new)
            sampled = self.sample(together)
            sides = [side.split([part.num_nodes for part in new]) for side in _sides(sampled)]
            for part, *walks in zip(new, *sides, strict=True):
                self._store(part, _walks(walks))
            if together is graph:
                return sampled
        found = [_sides(self._stored(part)) for part in graph.parts]
        return _walks([WalkFeatures.batch(side) for side in zip(*found, strict=True)])


@dataclass(frozen=True, kw_only=True)
class WalkRecipe(FeatureRecipe):
    """Features of sampled walks."""

    version = SAMPLER_VERSION
    made_by = "prune=None"
    size_name = "num_walks"
    num_walks: int
    halt_prob: float
    coupling: Coupling

    def _check(self) -> None:
        check_sizes(self.num_walks, self.max_length, self.num_heads)
        check_draws(self.halt_prob, self.coupling, self.seed)

    def make_side(self, graph: Graph, ensemble: Ensemble) -> WalkFeatures:
        """Sample the walks."""
        same = ("num_walks", "max_length", "halt_prob", "coupling", "seed", "normalization", "weighting")
        settings = {name: getattr(self, name) for name in same}
        return sample_features(graph, **settings, num_heads=self.num_sets, ensemble=ensemble)


def _sides(walks: Any) -> tuple[Any, ...]:
    return walks if isinstance(walks, tuple) else (walks,)


def _walks(sides: Sequence[WalkFeatures]) -> Walks:
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])
