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
        deviation: The standard deviation between seeds; NaN for a single seed.
        count: Number of seeds.
    """

    mean: float
    deviation: float
    count: int


@dataclass(frozen=True)
class Difference:
    """A mean difference, paired by seed, with its Student t interval; see :func:`paired_difference`.

    Args:
        mean: The mean difference.
        low: Lower end of the interval; minus infinity for a single seed.
        high: Upper end.
        count: Number of pairs.
    """

    mean: float
    low: float
    high: float
    count: int

    @property
    def verdict(self) -> str:
        """What the interval says about "the first is larger"; nothing for two pairs, which may agree by chance."""
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
    first: Mapping[int, float], second: Mapping[int, float], confidence: float = 0.95, test_share: float = 0.0
) -> Difference | None:
    r"""Compute the mean of ``first - second`` over common seeds; None if there are none.

    Folds and splits of one data set share training examples, so their differences are not independent. The variance of
    the mean of n differences, of variance s^2 each, is then estimated as

    .. math:: s^2 \Big(\frac1n + \frac{n_\text{test}}{n_\text{train}}\Big).

    Values that agree to six digits count as equal: the rest is rounding.

    Args:
        first: One value per seed.
        second: One value per seed.
        confidence: Probability of the interval.
        test_share: Test examples per training example if training sets overlap; 0 if runs are independent.

    Example:
        >>> found = paired_difference({0: 0.9, 1: 0.8, 2: 0.85}, {0: 0.8, 1: 0.72, 2: 0.74})
        >>> round(found.mean, 3), round(found.low, 3), round(found.high, 3), found.verdict
        (0.097, 0.059, 0.135, 'holds')

    References:
        Nadeau and Bengio (2003), Inference for the generalization error.
    """
    if test_share < 0:
        raise ValueError(f"`test_share` must be at least 0, but is {test_share}.")
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    pairs = [(first[seed], second[seed]) for seed in seeds]
    gaps = np.array([0.0 if math.isclose(one, two, rel_tol=1e-6) else one - two for one, two in pairs])
    mean = float(gaps.mean())
    if len(gaps) == 1:
        return Difference(mean, -math.inf, math.inf, 1)
    error = gaps.std(ddof=1) * math.sqrt(1 / len(gaps) + test_share)
    reach = float(stats.t.ppf(0.5 + confidence / 2, len(gaps) - 1) * error)
    return Difference(mean, mean - reach, mean + reach, len(gaps))
