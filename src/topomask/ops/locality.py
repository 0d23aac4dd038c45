"""Orders of rows in which neighbours see mostly the same columns: what makes tiles full and keeps caches warm."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TypeVar

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

# By the columns of a pattern, as long as they live.
_suggested: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

Owner = TypeVar("Owner")


def suggest_order(columns: Tensor, owner: Owner, order: Callable[[Owner], Tensor]) -> None:
    """Say in which order the rows of the pattern with these columns are best taken; asked for at first use.

    Args:
        columns: The columns of the pattern.
        owner: What the order is found from, a graph, say. It is not kept: it may be what keeps the columns.
        order: Finds the order; must not hold the owner.
    """
    _suggested[columns] = weakref.ref(owner), order


def row_order(row_ptr: Tensor, columns: Tensor, num_columns: int) -> Tensor | None:
    """The order that was suggested for a pattern; else one found from a square pattern itself; else None."""
    from topomask.ops.tiles.layout import order_nodes

    if columns in _suggested:
        reference, order = _suggested[columns]
        if (owner := reference()) is not None:
            return order(owner)
    return order_nodes(row_ptr, columns) if len(row_ptr) - 1 == num_columns else None
