"""Masks: linear operators on the tokens with a fast product."""

from topomask.masks.base import Entries, Mask
from topomask.masks.dense import DenseMask
from topomask.masks.diffusion import DiffusionMask
from topomask.masks.low_rank import LowRankMask
from topomask.masks.power_series import PowerSeriesMask
from topomask.masks.prefix import PrefixMask
from topomask.masks.selected import SelectedMask
from topomask.masks.visit import VisitMask
from topomask.masks.walk import WalkMask

__all__ = [
    "DenseMask",
    "DiffusionMask",
    "Entries",
    "LowRankMask",
    "Mask",
    "PowerSeriesMask",
    "PrefixMask",
    "SelectedMask",
    "VisitMask",
    "WalkMask",
]
