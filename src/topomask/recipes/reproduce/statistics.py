"""Means over seeds, and differences paired by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
        ahead: In how many of them the first is larger.
        error: The standard error of the mean; infinite for one seed.
    """

    mean: float
    low: float
    high: float
    count: int
    ahead: int
    error: float

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
    mean, ahead = float(gaps.mean()), int((gaps > 0).sum())
    if len(gaps) == 1:
        return Difference(mean, -math.inf, math.inf, 1, ahead, math.inf)
    error = float(gaps.std(ddof=1)) * math.sqrt(1 / len(gaps) + test_share)
    return _with_interval(mean, error, len(gaps) - 1, confidence, len(gaps), ahead)


def pooled_difference(parts: Sequence[Difference], confidence: float = 0.95) -> Difference:
    r"""The mean of differences that are independent of each other, such as those of several tables; all weigh alike.

    Its variance is the sum of theirs over k^2. Tables vary differently, so the degrees of freedom are those of
    Satterthwaite, of errors e_i of n_i pairs each:

    .. math:: \nu = \frac{\big(\sum_i e_i^2\big)^2}{\sum_i e_i^4 / (n_i - 1)} .

    Args:
        parts: The differences, of two pairs or more each.
        confidence: Probability of the interval.

    Example:
        >>> first = paired_difference({0: 0.9, 1: 0.8, 2: 0.85}, {0: 0.8, 1: 0.75, 2: 0.7})
        >>> second = paired_difference({0: 0.7, 1: 0.6, 2: 0.65}, {0: 0.5, 1: 0.5, 2: 0.5})
        >>> first.verdict, second.verdict, pooled_difference([first, second]).verdict
        ('undecided', 'holds', 'holds')

    References:
        Satterthwaite (1946), An approximate distribution of estimates of variance components.
    """
    if not parts or min(part.count for part in parts) < 2:
        raise ValueError("`parts` must be differences of two pairs or more each.")
    squares = np.array([part.error**2 for part in parts])
    counts = np.array([part.count for part in parts])
    total = float(squares.sum())
    freedom = total**2 / float((squares**2 / (counts - 1)).sum()) if total else math.inf
    mean = float(np.mean([part.mean for part in parts]))
    ahead = sum(part.ahead for part in parts)
    return _with_interval(mean, math.sqrt(total) / len(parts), freedom, confidence, int(counts.sum()), ahead)


def _with_interval(mean: float, error: float, freedom: float, confidence: float, count: int, ahead: int) -> Difference:
    reach = float(stats.t.ppf(0.5 + confidence / 2, freedom)) * error
    return Difference(mean, mean - reach, mean + reach, count, ahead, error)
