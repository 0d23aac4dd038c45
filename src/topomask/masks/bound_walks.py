"""Walks bound to a mask: how they are drawn, and what is computed of them once."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor

from topomask.graph import Graph, Normalization
from topomask.masks.base import MAX_PAIRS_PER_QUERY
from topomask.ops.locality import suggest_order
from topomask.ops.pair_attention import MIN_ENTRIES_PER_ROW, TileWork, estimate_tiles
from topomask.ops.pair_values import count_triples, estimate_pairs, pair_pattern
from topomask.ops.sparse_product import Pattern
from topomask.walks import Coupling, WalkFeatures, Weighting, sample_features

Features = WalkFeatures | tuple[WalkFeatures, WalkFeatures]


def draw_seed() -> int:
    """A seed from torch's generator."""
    return int(torch.randint(2**62, (), device="cpu"))


@dataclass(frozen=True)
class WalkRecipe:
    """All that decides the walks, apart from the graph."""

    num_walks: int
    max_length: int
    halt_prob: float
    coupling: Coupling
    num_heads: int
    normalization: Normalization | None
    symmetric: bool
    shared_walks: bool
    seed: int
    weighting: Weighting = "importance"

    def sample(self, graph: Graph) -> Features:
        """Walks of queries and keys; one set where keys have none of their own."""
        walks = {
            name: getattr(self, name) for name in ("num_walks", "max_length", "halt_prob", "coupling", "num_heads")
        }
        walks |= {"seed": self.seed, "normalization": self.normalization, "weighting": self.weighting}
        query = sample_features(graph, **walks, ensemble="query")
        if not self.symmetric or self.shared_walks:
            return query
        return query, sample_features(graph, **walks, ensemble="key")


@dataclass(frozen=True, eq=False)
class BoundWalks:
    """Features of queries and keys, and the pattern of their product, which is computed once."""

    query: WalkFeatures
    key: WalkFeatures | None
    # The graph whose nodes the queries are, all in order; None where they are a selection.
    graph: Graph | None = None

    # Pairs of walks that meet, and about how many entries they make.
    num_triples: int = field(init=False)
    num_pairs: int = field(init=False)
    # The work of attention in tiles, where there is any.
    tile_work: TileWork | None = field(init=False)

    def __post_init__(self) -> None:
        # Now rather than at first use, which may be inside torch.compile.
        for features in {self.query, self.query if self.key is None else self.key}:
            features.prepare()
        if self.graph is not None:
            heads = self.query.num_heads
            suggest_order(self.query.pattern.columns, self.graph, partial(_order_per_head, num_heads=heads))
        bound = pairs = self.query.num_nonzeros
        if self.key is not None:
            bound = pairs = count_triples(self.query.pattern, self.key.pattern)
            if bound <= MAX_PAIRS_PER_QUERY * self.query.num_rows * self.query.num_heads:
                pairs = estimate_pairs(self.query.pattern, self.key.pattern)
        object.__setattr__(self, "num_triples", bound)
        object.__setattr__(self, "num_pairs", pairs)
        limited = bound <= MAX_PAIRS_PER_QUERY * self.query.num_rows * self.query.num_heads
        tiled = limited and self.is_tiled and self.loads.device.type == "cpu"
        key = None if self.key is None else self.key.pattern
        object.__setattr__(self, "tile_work", estimate_tiles(self.query.pattern, key) if tiled else None)

    @property
    def is_tiled(self) -> bool:
        """Whether queries see enough keys for attention in tiles, which forms M_hat on the way."""
        return self.num_pairs >= MIN_ENTRIES_PER_ROW * self.query.num_rows * self.query.num_heads

    @property
    def loads(self) -> Tensor:
        """Loads of the queries: their device and precision are those of all."""
        return self.query.loads

    @property
    def signed(self) -> bool:
        """Whether any load is negative."""
        return self.query.signed or (self.key is not None and self.key.signed)

    @cached_property
    def _product_pattern(self) -> Pattern:
        assert self.key is not None
        with torch.inference_mode(False):
            return pair_pattern(self.query.pattern, self.key.pattern)

    def pairs(self) -> Pattern:
        """The pattern of M_hat, computed once."""
        return self.query.pattern if self.key is None else _constant_pattern(self)

    def to(self, device: torch.device, dtype: torch.dtype) -> BoundWalks:
        """The walks on another device or in another precision."""
        query = self.query.to(device, dtype)
        key = query if self.key is self.query else None if self.key is None else self.key.to(device, dtype)
        return self if query is self.query and key is self.key else BoundWalks(query, key, self.graph)


def _order_per_head(graph: Graph, num_heads: int) -> Tensor:
    order = graph.node_groups
    return (torch.arange(num_heads, device="cpu")[:, None] * graph.num_nodes + order).flatten()


@torch.compiler.assume_constant_result
def _constant_pattern(walks: BoundWalks) -> Pattern:
    """Walks are frozen, so the compiler need not look into how their pattern comes about."""
    return walks._product_pattern


def check_features(features: WalkFeatures, graph: Graph, settings: WalkRecipe) -> None:
    """A ValueError unless the features are those of this graph and this recipe."""
    names = ("num_rows", "num_columns", "num_heads", "max_length", "normalization", "weighting")
    normalization = "row" if settings.weighting == "visits" else graph.check_normalization(settings.normalization)
    sizes = (graph.num_nodes, graph.num_nodes, settings.num_heads, settings.max_length)
    expected = (*sizes, normalization, settings.weighting)
    found = tuple(getattr(features, name) for name in names)
    if found != expected:
        raise ValueError(
            f"`features` must have ({', '.join(names)}) = {expected}, but has {found}. "
            "Sample them on the same graph with the same settings, as mask.sample(graph) does."
        )
