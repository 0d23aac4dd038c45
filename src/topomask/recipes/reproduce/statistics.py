"""Means over seeds, and differences paired by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Spread:
    """A mean over seeds.

    Args:
        mean: The mean.
        deviation: The standard deviation between seeds; NaN for one.
        count: How many seeds.
    """

    mean: float
    deviation: float
    count: int


@dataclass(frozen=True)
class Difference:
    """A mean difference, paired by seed, with its interval of Student's t.

    Args:
        mean: The mean difference.
        low: Lower end of the interval; minus infinity for one seed.
        high: Upper end.
        count: How many pairs.
    """

    mean: float
    low: float
    high: float
    count: int

    @property
    def verdict(self) -> str:
        """What the interval says of "the first is larger"; two pairs may agree by chance, and say nothing."""
        if self.count < 3:
            return "undecided"
        if self.low > 0:
            return "holds"
        return "does not hold" if self.high < 0 else "undecided"


def spread(values: Mapping[int, float]) -> Spread:
    """The mean of one value per seed."""
    array = np.array(list(values.values()), dtype=float)
    return Spread(float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else math.nan, len(array))


def paired_difference(
    first: Mapping[int, float], second: Mapping[int, float], confidence: float = 0.95
) -> Difference | None:
    """The mean of ``first - second`` over the seeds that both have; None where there is none.

    Values that agree to six digits are equal: the rest is rounding.

    Example:
        >>> found = paired_difference({0: 0.9, 1: 0.8, 2: 0.85}, {0: 0.8, 1: 0.72, 2: 0.74})
        >>> round(found.mean, 3), round(found.low, 3), round(found.high, 3), found.verdict
        (0.097, 0.059, 0.135, 'holds')
    """
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    pairs = [(first[seed], second[seed]) for seed in seeds]
    gaps = np.array([0.0 if math.isclose(one, two, rel_tol=1e-6) else one - two for one, two in pairs])
    mean = float(gaps.mean())
    if len(gaps) == 1:
        return Difference(mean, -math.inf, math.inf, 1)
    reach = float(stats.t.ppf(0.5 + confidence / 2, len(gaps) - 1) * gaps.std(ddof=1) / math.sqrt(len(gaps)))
    return Difference(mean, mean - reach, mean + reach, len(gaps))
