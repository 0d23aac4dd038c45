"""Masks: linear operators on the tokens with a fast product."""

from topomask.masks.base import Entries, Mask
from topomask.masks.degree import DegreeMask
from topomask.masks.dense import DenseMask
from topomask.masks.diffusion import DiffusionMask
from topomask.masks.forest import ForestMask
from topomask.masks.hypercube import HypercubeMask
from topomask.masks.kronecker import KroneckerMask
from topomask.masks.learned_features import LearnedFeatureMask
from topomask.masks.low_rank import LowRankMask
from topomask.masks.neighbor import NeighborMask
from topomask.masks.power_series import PowerSeriesMask
from topomask.masks.prefix import PrefixMask
from topomask.masks.same_graph import SameGraphMask
from topomask.masks.selected import SelectedMask
from topomask.masks.shortest_path import ShortestPathMask
from topomask.masks.stochastic_position import StochasticPositionMask
from topomask.masks.sum import SumMask
from topomask.masks.toeplitz import ToeplitzMask
from topomask.masks.visit import VisitMask
from topomask.masks.walk import WalkMask

__all__ = [
    "DegreeMask",
    "DenseMask",
    "DiffusionMask",
    "Entries",
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
]
