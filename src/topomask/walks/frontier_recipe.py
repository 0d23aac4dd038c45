"""The recipe of the features of a mask that are pruned frontiers."""

from __future__ import annotations

from dataclasses import dataclass

from topomask.graph import Graph
from topomask.walks.expand import EXPANSION_VERSION, check_frontiers, expand_features
from topomask.walks.features import Prune, WalkFeatures
from topomask.walks.recipe import FeatureRecipe
from topomask.walks.sample import Ensemble, check_draws, check_sizes


@dataclass(frozen=True, kw_only=True)
class FrontierRecipe(FeatureRecipe):
    """Features of pruned frontiers.

    With ``prune="largest"``, nothing is drawn, so one set serves queries, keys and all heads, whatever the seed.
    """

    version = EXPANSION_VERSION
    made_by = "prune='largest' or prune='resample'"
    size_name = "width"
    prune: Prune
    width: int
    max_entries: int | None = None

    def _check(self) -> None:
        check_frontiers(self.prune, self.width, self.max_length, self.max_entries)
        check_sizes(1, self.max_length, self.num_heads)
        check_draws(0.0, "iid", self.seed)
        if self.weighting != "importance":
            raise ValueError(
                f"`weighting` is {self.weighting!r}, but frontiers have no walkers whose visits could be counted. Use "
                "VisitMask, whose walks are sampled."
            )
        if self.max_entries is not None:
            object.__setattr__(self, "max_entries", int(self.max_entries))
        if not self.is_random:
            for name, value in (("seed", 0), ("shared_walks", self.symmetric), ("shared_heads", True)):
                object.__setattr__(self, name, value)

    @property
    def is_random(self) -> bool:
        """Whether features depend on the seed."""
        return self.prune != "largest"

    def make_side(self, graph: Graph, ensemble: Ensemble) -> WalkFeatures:
        """Expand the frontiers."""
        same = ("width", "max_length", "prune", "max_entries", "normalization", "seed")
        settings = {name: getattr(self, name) for name in same}
        return expand_features(graph, **settings, num_heads=self.num_sets, ensemble=ensemble)
