"""Tell a transformer which graph its tokens live on, at linear cost."""

from topomask import feature_maps, nn, series, theory
from topomask.attention import masked_attention, masked_softmax_attention
from topomask.builders import cycle_graph, grid_graph, hypercube_graph, knn_graph, path_graph
from topomask.graph import Graph
from topomask.masks import DenseMask, LowRankMask, Mask, PowerSeriesMask, PrefixMask, SelectedMask, WalkMask
from topomask.planning import Plan, plan_attention
from topomask.series import convolve, deconvolve
from topomask.walks import WalkFeatures, random_walks, sample_features

__version__ = "0.1.0"

__all__ = [
    "DenseMask",
    "Graph",
    "LowRankMask",
    "Mask",
    "Plan",
    "PowerSeriesMask",
    "PrefixMask",
    "SelectedMask",
    "WalkFeatures",
    "WalkMask",
    "convolve",
    "cycle_graph",
    "deconvolve",
    "feature_maps",
    "grid_graph",
    "hypercube_graph",
    "knn_graph",
    "masked_attention",
    "masked_softmax_attention",
    "nn",
    "path_graph",
    "plan_attention",
    "random_walks",
    "sample_features",
    "series",
    "theory",
]
