"""Tell a transformer which graph its tokens live on, at linear cost.

Names are imported when first used, so ``topomask --help`` does not import torch.
"""

from typing import TYPE_CHECKING

from topomask.masks.registry import CLASS_NAMES
from topomask.support.imports import lazy_names

if TYPE_CHECKING:
    from topomask import data, models, nn, testing, train
    from topomask.attention import feature_maps, linear_attention, masked_attention, masked_softmax_attention
    from topomask.attention.plan import Plan, plan_attention
    from topomask.graph import Graph, cycle_graph, grid_graph, hypercube_graph, knn_graph, path_graph, per_graph
    from topomask.masks import ExponentialDecay, Mask, Operator
    from topomask.masks.registry import *  # noqa: F403
    from topomask.walks import WalkFeatures, expand_features, random_walks, sample_features, series, theory
    from topomask.walks.series import convolve, deconvolve

__version__ = "0.1.0"

__all__ = ["ExponentialDecay", "Graph", "Mask", "Operator", "Plan", "WalkFeatures", *CLASS_NAMES]
__all__ += ["data", "feature_maps", "models", "nn", "series", "testing", "theory", "train"]
__all__ += ["convolve", "cycle_graph", "deconvolve", "grid_graph", "hypercube_graph", "knn_graph", "linear_attention"]
__all__ += ["masked_attention", "masked_softmax_attention", "path_graph", "per_graph", "plan_attention"]
__all__ += ["expand_features", "random_walks", "sample_features"]

__getattr__, __dir__, _ = lazy_names(__name__, dict.fromkeys(CLASS_NAMES, "topomask.masks"))
