"""Masks: settings and parameters that become linear operators on the nodes of a graph.

Names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from topomask.masks.registry import MASKS
from topomask.support.imports import lazy_names

if TYPE_CHECKING:
    from topomask.masks.all_pairs import AllPairsMask
    from topomask.masks.decay import ExponentialDecay
    from topomask.masks.degree import DegreeMask
    from topomask.masks.dense import DenseMask
    from topomask.masks.diffusion import DiffusionMask
    from topomask.masks.entries import Entries
    from topomask.masks.forest import ForestMask
    from topomask.masks.hypercube import HypercubeMask
    from topomask.masks.kronecker import KroneckerMask
    from topomask.masks.learned_features import LearnedFeatureMask
    from topomask.masks.low_rank import LowRankMask
    from topomask.masks.mask import Mask
    from topomask.masks.neighbor import NeighborMask
    from topomask.masks.operator import Operator
    from topomask.masks.power_series import PowerSeriesMask
    from topomask.masks.prefix import PrefixMask
    from topomask.masks.shortest_path import ShortestPathMask
    from topomask.masks.stochastic_position import StochasticPositionMask
    from topomask.masks.sum import SumMask
    from topomask.masks.toeplitz import ToeplitzMask
    from topomask.masks.visit import VisitMask
    from topomask.masks.walk import WalkMask

__all__ = [
    "AllPairsMask",
    "DegreeMask",
    "DenseMask",
    "DiffusionMask",
    "Entries",
    "ExponentialDecay",
    "ForestMask",
    "HypercubeMask",
    "KroneckerMask",
    "LearnedFeatureMask",
    "LowRankMask",
    "Mask",
    "NeighborMask",
    "Operator",
    "PowerSeriesMask",
    "PrefixMask",
    "ShortestPathMask",
    "StochasticPositionMask",
    "SumMask",
    "ToeplitzMask",
    "VisitMask",
    "WalkMask",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {entry.module: (entry.class_name,) for entry in MASKS.values()}
    | {"decay": ("ExponentialDecay",), "entries": ("Entries",), "mask": ("Mask",), "operator": ("Operator",)},
)
