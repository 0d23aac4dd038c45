"""Masks: settings and learnable parameters that become linear operators on a graph. Names are imported lazily."""

from typing import TYPE_CHECKING

from topomask.masks.registry import MASKS
from topomask.support.imports import lazy_names

if TYPE_CHECKING:
    from topomask.masks.entries import Entries as Entries
    from topomask.masks.mask import Mask as Mask
    from topomask.masks.operator import Operator as Operator
    from topomask.masks.registry import *  # noqa: F403
    from topomask.masks.toeplitz import ExponentialDecay as ExponentialDecay

__getattr__, __dir__, __all__ = lazy_names(
    __name__, {entry.class_name: f"topomask.masks.{entry.module}" for entry in MASKS.values()}
)
