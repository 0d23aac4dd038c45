"""Orders of rows in which neighbours see mostly the same columns: what makes tiles full and keeps caches warm."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

# By the columns of a pattern, as long as they live.
_suggested: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def suggest_order(columns: Tensor, order: Callable[[], Tensor]) -> None:
    """Say in which order the rows of the pattern with these columns are best taken; asked for at first use."""
    _suggested[columns] = order


def row_order(row_ptr: Tensor, columns: Tensor, num_columns: int) -> Tensor | None:
    """The order that was suggested for a pattern; else one found from a square pattern itself; else None."""
    from topomask.ops.tiles.layout import order_nodes

    if columns in _suggested:
        return _suggested[columns]()
    return order_nodes(row_ptr, columns) if len(row_ptr) - 1 == num_columns else None
