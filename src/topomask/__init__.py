"""Tell a transformer which graph its tokens live on, at linear cost.

Names are imported when they are first used, so that ``topomask --help`` need not wait for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topomask import data, feature_maps, models, nn, series, theory, train
    from topomask.attention import masked_attention, masked_softmax_attention
    from topomask.builders import cycle_graph, grid_graph, hypercube_graph, knn_graph, path_graph
    from topomask.decay import ExponentialDecay
    from topomask.graph import Graph
    from topomask.masks import (
        DegreeMask,
        DenseMask,
        DiffusionMask,
        ForestMask,
        HypercubeMask,
        KroneckerMask,
        LearnedFeatureMask,
        LowRankMask,
        Mask,
        NeighborMask,
        PowerSeriesMask,
        PrefixMask,
        SameGraphMask,
        SelectedMask,
        ShortestPathMask,
        StochasticPositionMask,
        SumMask,
        ToeplitzMask,
        VisitMask,
        WalkMask,
    )
    from topomask.planning import Plan, plan_attention
    from topomask.series import convolve, deconvolve
    from topomask.unmasked_attention import linear_attention
    from topomask.walks import WalkFeatures, random_walks, sample_features

__version__ = "0.1.0"

__all__ = [
    "DegreeMask",
    "DenseMask",
    "DiffusionMask",
    "ExponentialDecay",
    "ForestMask",
    "Graph",
    "HypercubeMask",
    "KroneckerMask",
    "LearnedFeatureMask",
    "LowRankMask",
    "Mask",
    "NeighborMask",
    "Plan",
    "PowerSeriesMask",
    "PrefixMask",
    "SameGraphMask",
    "SelectedMask",
    "ShortestPathMask",
    "StochasticPositionMask",
    "SumMask",
    "ToeplitzMask",
    "VisitMask",
    "WalkFeatures",
    "WalkMask",
    "convolve",
    "cycle_graph",
    "data",
    "deconvolve",
    "feature_maps",
    "grid_graph",
    "hypercube_graph",
    "knn_graph",
    "linear_attention",
    "masked_attention",
    "masked_softmax_attention",
    "models",
    "nn",
    "path_graph",
    "plan_attention",
    "random_walks",
    "sample_features",
    "series",
    "theory",
    "train",
]

# Where every name lives; the modules themselves are names too.
_HOMES = {
    "attention": ("masked_attention", "masked_softmax_attention"),
    "builders": ("cycle_graph", "grid_graph", "hypercube_graph", "knn_graph", "path_graph"),
    "decay": ("ExponentialDecay",),
    "graph": ("Graph",),
    "masks": (
        "DegreeMask",
        "DenseMask",
        "DiffusionMask",
        "ForestMask",
        "HypercubeMask",
        "KroneckerMask",
        "LearnedFeatureMask",
        "LowRankMask",
        "Mask",
        "NeighborMask",
        "PowerSeriesMask",
        "PrefixMask",
        "SameGraphMask",
        "SelectedMask",
        "ShortestPathMask",
        "StochasticPositionMask",
        "SumMask",
        "ToeplitzMask",
        "VisitMask",
        "WalkMask",
    ),
    "planning": ("Plan", "plan_attention"),
    "series": ("convolve", "deconvolve"),
    "unmasked_attention": ("linear_attention",),
    "walks": ("WalkFeatures", "random_walks", "sample_features"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("data", "feature_maps", "graph", "masks", "models", "nn", "planning", "series", "theory", "train", "walks")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"topomask.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'topomask' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"topomask.{_HOME_OF[name]}"), name)
    # The next access finds it as a plain attribute.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
