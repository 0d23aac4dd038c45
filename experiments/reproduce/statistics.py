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
    """A mean difference, paired by seed, with its interval of Student's t; see :func:`paired_difference`.

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
    first: Mapping[int, float], second: Mapping[int, float], confidence: float = 0.95, test_share: float = 0.0
) -> Difference | None:
    r"""The mean of ``first - second`` over the seeds that both have; None where there is none.

    Folds and splits of one set share examples of training, so that their differences are not independent. The variance
    of the mean of n differences, of variance s^2 each, is then taken as

    .. math:: s^2 \Big(\frac1n + \frac{n_\text{test}}{n_\text{train}}\Big).

    Values that agree to six digits are equal: the rest is rounding.

    Args:
        first: A value per seed.
        second: Another.
        confidence: Probability of the interval.
        test_share: Examples of the test per example of training, where training sets overlap; 0 where runs are
            independent.

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
