"""Known values that rows should reach."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A known value that the mean of a cell should reach.

    Args:
        cell: Name of the cell.
        value: The value as printed, with its standard deviation if one is published: "78.6 ± 3.4".
        source: What the value is; targets of several tables with the same source are counted together.
        within_deviation: Whether one standard deviation below the value is enough.
    """

    cell: str
    value: str
    source: str
    within_deviation: bool = False

    def __post_init__(self) -> None:
        known = published(self.value)
        if known is None or (self.within_deviation and known[1] is None):
            raise ValueError(f"`value` must be a number, as in '78.6 ± 3.4' or '96.2', but is {self.value!r}.")

    @property
    def least(self) -> float:
        """The lowest mean that reaches the value."""
        mean, deviation = published(self.value) or (math.nan, None)
        return mean - (deviation or 0.0) if self.within_deviation else mean

    @property
    def name(self) -> str:
        """Description of the target."""
        return ("within one standard deviation of, or above, " if self.within_deviation else "at least ") + self.source

    def reached(self, values: Collection[float], count: int) -> bool | None:
        """Whether the mean of these values reaches the target; None if there are fewer than ``count`` values."""
        return None if len(values) < count else sum(values) / len(values) >= self.least


def published(value: str) -> tuple[float, float | None] | None:
    """Parse the mean and standard deviation of a value as printed; None if it is not a single number.

    Example:
        >>> published("78.6 ± 3.4"), published("81.5"), published("OOM"), published("0.741, 0.699")
        ((78.6, 3.4), (81.5, None), None, None)
    """
    mean, _, deviation = value.partition(" ± ")
    try:
        return float(mean), float(deviation) if deviation else None
    except ValueError:
        return None
