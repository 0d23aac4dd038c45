"""Masks: settings and parameters that become linear operators on the nodes of a graph.

Names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from topomask.masks.registry import CLASS_NAMES, MASKS
from topomask.support.imports import lazy_names

if TYPE_CHECKING:
    from topomask.masks.decay import ExponentialDecay as ExponentialDecay
    from topomask.masks.entries import Entries as Entries
    from topomask.masks.mask import Mask as Mask
    from topomask.masks.operator import Operator as Operator
    from topomask.masks.registry import *  # noqa: F403

__all__ = ["Entries", "ExponentialDecay", "Mask", "Operator", *CLASS_NAMES]

__getattr__, __dir__ = lazy_names(
    __name__,
    {entry.module: (entry.class_name,) for entry in MASKS.values()}
    | {"decay": ("ExponentialDecay",), "entries": ("Entries",), "mask": ("Mask",), "operator": ("Operator",)},
)
