"""The registry of masks by name. A mask is imported when it is first used.

A new mask needs its own file, and an entry and an import here, from which ``topomask`` takes its name.
"""

from __future__ import annotations

import inspect
import math
import pkgutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    # For type checkers, which find topomask.WalkMask and the others here.
    from topomask.masks.all_pairs import AllPairsMask as AllPairsMask
    from topomask.masks.degree import DegreeMask as DegreeMask
    from topomask.masks.dense import DenseMask as DenseMask
    from topomask.masks.diffusion import DiffusionMask as DiffusionMask
    from topomask.masks.forest import ForestMask as ForestMask
    from topomask.masks.hypercube import HypercubeMask as HypercubeMask
    from topomask.masks.kronecker import KroneckerMask as KroneckerMask
    from topomask.masks.learned_features import LearnedFeatureMask as LearnedFeatureMask
    from topomask.masks.low_rank import LowRankMask as LowRankMask
    from topomask.masks.neighbor import NeighborMask as NeighborMask
    from topomask.masks.power_series import PowerSeriesMask as PowerSeriesMask
    from topomask.masks.prefix import PrefixMask as PrefixMask
    from topomask.masks.shortest_path import ShortestPathMask as ShortestPathMask
    from topomask.masks.stochastic_position import StochasticPositionMask as StochasticPositionMask
    from topomask.masks.sum import SumMask as SumMask
    from topomask.masks.toeplitz import ToeplitzMask as ToeplitzMask
    from topomask.masks.visit import VisitMask as VisitMask
    from topomask.masks.walk import WalkMask as WalkMask

# The first argument of a mask; the first four can be read from a graph.
Place = Literal["graph", "num_nodes", "shape", "dim", "matrix", "masks"]

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class MaskEntry:
    """What is known about a mask before it is imported.

    Attributes:
        home: Its module in :mod:`topomask.masks`, and its class or the class method that makes it, as in
            ``"forest:ForestMask.from_graph"``.
        about: A short description.
        product: Time of a product, with N nodes and E edges.
        place: Its first argument.
        example: A kind of graph that it works on, as in ``topomask mask --graph``.
        picture: Settings that show more than the defaults; ignored if any of them is given.
        in_models: Default settings in graph transformers; None if they do not accept it by name.
        model_names: The names of its options in graph transformers, if they differ.
    """

    home: str
    about: str
    product: str
    place: Place = "graph"
    example: str = "grid"
    picture: Settings = field(default_factory=dict)
    in_models: Settings | None = None
    model_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def module(self) -> str:
        """The name of its module."""
        return self.home.partition(":")[0]

    @property
    def class_name(self) -> str:
        """Its name in ``topomask``."""
        return self.home.partition(":")[2].partition(".")[0]

    def load(self) -> Callable[..., Any]:
        """Import and return the class, or the class method that makes the mask."""
        return pkgutil.resolve_name(f"topomask.masks.{self.home}")

    def options(self) -> dict[str, inspect.Parameter]:
        """Return its arguments except the first."""
        kind = pkgutil.resolve_name(f"topomask.masks.{self.module}:{self.class_name}")
        _, *options = inspect.signature(kind).parameters.values()
        return {option.name: option for option in options}


MASKS: dict[str, MaskEntry] = {
    "walk": MaskEntry(
        "walk:WalkMask",
        "graph random features: a learnt power series of the adjacency matrix, estimated by walks",
        "O(N)",
        # Graphs may have hubs, where the walks of many nodes meet.
        in_models={"symmetric": False},
    ),
    "visit": MaskEntry(
        "visit:VisitMask",
        "overlap of walks, by how often they visit a node: the random-walk kernel of GKAT",
        "O(N)",
        in_models={"normalize": True},
        model_names={"normalize": "unit_diagonal"},
    ),
    "power-series": MaskEntry(
        "power_series:PowerSeriesMask",
        "a learnt power series of the adjacency matrix, exact",
        "O(K E)",
        # The heat kernel.
        picture={"coefficients": [math.exp(-2.0) * 2.0**k / math.factorial(k) for k in range(11)], "order": 10},
        # The highest power: graph transformers start from 2^-k.
        in_models={"coefficients": 4},
        model_names={"coefficients": "max_length"},
    ),
    "diffusion": MaskEntry(
        "diffusion:DiffusionMask",
        "heat kernel of the graph, with a learnt time: the diffusion kernel of GKAT",
        "O(K E)",
        picture={"time": 2.0},
        in_models={"operator": "normalized_laplacian"},
    ),
    "neighbor": MaskEntry("neighbor:NeighborMask", "edges and self-loops", "O(E)", in_models={}),
    "shortest-path": MaskEntry(
        "shortest_path:ShortestPathMask",
        "a learnt weight per number of hops",
        "O(N^2)",
        in_models={"max_distance": 4},
        model_names={"max_distance": "max_length"},
    ),
    "degree": MaskEntry(
        "degree:DegreeMask",
        "a learnt function of the degrees of query and key",
        "O(N)",
        picture={"max_degree": 7, "z": [k / 9 for k in range(1, 9)]},
        in_models={},
    ),
    "all": MaskEntry("all_pairs:AllPairsMask", "no mask: all nodes of the same graph", "O(N)", in_models={}),
    "forest": MaskEntry(
        "forest:ForestMask", "a learnt function of the distance on a tree", "O(N), O(N log^2 N)", example="tree"
    ),
    "spanning-forest": MaskEntry(
        "forest:ForestMask.from_graph", "the same on a minimum spanning forest of any graph", "O(N), O(N log^2 N)"
    ),
    "hypercube": MaskEntry(
        "hypercube:HypercubeMask", "heat kernel of a hypercube", "O(N log N)", "dim", example="hypercube"
    ),
    "toeplitz": MaskEntry("toeplitz:ToeplitzMask", "a learnt weight per offset on a grid", "O(N log N)", "shape"),
    "stochastic-position": MaskEntry(
        "stochastic_position:StochasticPositionMask",
        "stochastic template of the lag in a sequence",
        "O(N R)",
        "num_nodes",
        example="path",
    ),
    "learned-features": MaskEntry(
        "learned_features:LearnedFeatureMask", "free features per token, without a graph", "O(N^2)", "num_nodes"
    ),
    "low-rank": MaskEntry("low_rank:LowRankMask", "a given product of two thin matrices", "O(N r)", "matrix"),
    "dense": MaskEntry("dense:DenseMask", "a given matrix", "O(N^2)", "matrix"),
    "sum": MaskEntry("sum:SumMask", "a weighted sum of masks", "that of the parts", "masks"),
    "kronecker": MaskEntry(
        "kronecker:KroneckerMask", "a mask on time times one on space", "that of the parts", "masks"
    ),
    "prefix": MaskEntry(
        "prefix:PrefixMask", "prefix tokens, such as CLS, that see all and are seen by all", "that of the part", "masks"
    ),
}

CLASS_NAMES = sorted({entry.class_name for entry in MASKS.values()})

# Masks that need nothing but a graph.
ON_GRAPHS = {name: entry for name, entry in MASKS.items() if entry.place not in ("matrix", "masks")}


def known_name(name: Any, names: Collection[str]) -> Any:
    """Return "grf" or "walk", whichever is in ``names``: the paper's name and the mask's name of the same thing."""
    other = {"grf": "walk", "walk": "grf"}.get(name) if isinstance(name, str) else None
    return other if other in names and name not in names else name
