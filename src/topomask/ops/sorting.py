"""Sorting inside compiled kernels. Numba needs seconds to compile NumPy's sort, once per type."""

from __future__ import annotations

from typing import Any

from numba import njit

from topomask.ops.backend import EXACT


@njit(**EXACT)
def sort(values: Any) -> None:
    """Sort numbers in place, in ascending order: Shellsort, with gaps that shrink to a third."""
    count, gap = len(values), 1
    while 3 * gap + 1 < count:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            moving, j = values[i], i
            while j >= gap and values[j - gap] > moving:
                values[j] = values[j - gap]
                j -= gap
            values[j] = moving
        gap //= 3
