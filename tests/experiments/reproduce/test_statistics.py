import math

import numpy as np
import pytest
from scipy import stats

from experiments.reproduce.statistics import Difference, paired_difference, spread


def draws(seeds, mean=0.0, seed=0):
    return dict(zip(seeds, np.random.default_rng(seed).normal(mean, 0.1, len(seeds)).tolist(), strict=True))


@pytest.mark.parametrize("count", [2, 3, 5, 30])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_the_interval_is_that_of_the_paired_t_test(count, confidence):
    first, second = draws(range(count), 0.1), draws(range(count), seed=1)
    found = paired_difference(first, second, confidence)
    test = stats.ttest_rel(list(first.values()), list(second.values()))
    expected = test.confidence_interval(confidence)
    assert (found.low, found.high) == (pytest.approx(expected.low), pytest.approx(expected.high))
    assert found.mean == pytest.approx(np.mean(list(first.values())) - np.mean(list(second.values())))
    assert found.count == count
    # The verdict is the test at that level.
    assert (found.verdict == "undecided") == (test.pvalue > 1 - confidence)


def test_where_training_sets_overlap_the_variance_is_that_of_nadeau_and_bengio():
    """Ten folds by hand: differences 1, ..., 10, of variance 55/6; 0.1 + 10/81 in place of 0.1."""
    first, second = {fold: 2.0 * (fold + 1) for fold in range(10)}, {fold: fold + 1.0 for fold in range(10)}
    found = paired_difference(first, second, test_share=10 / 81)
    # The 0.975 quantile of Student's t with nine degrees of freedom is 2.262157.
    reach = 2.262157 * math.sqrt((55 / 6) * (1 / 10 + 10 / 81))
    assert (found.mean, found.low, found.high) == pytest.approx((5.5, 5.5 - reach, 5.5 + reach), rel=1e-6)
    plain = paired_difference(first, second)
    assert (found.high - found.low) / (plain.high - plain.low) == pytest.approx(math.sqrt(1 + 100 / 81))
    with pytest.raises(ValueError, match="`test_share` must be at least 0"):
        paired_difference(first, second, test_share=-0.1)


def test_only_seeds_that_both_have_are_paired():
    found = paired_difference({0: 1.0, 1: 5.0, 7: 3.0}, {7: 2.0, 0: 0.0, 2: 9.0})
    assert (found.mean, found.count) == (1.0, 2)
    assert paired_difference({0: 1.0}, {1: 1.0}) is None
    assert paired_difference({}, {}) is None


def test_one_seed_decides_nothing():
    found = paired_difference({3: 2.0}, {3: 1.0})
    assert found == Difference(1.0, -math.inf, math.inf, 1)
    assert found.verdict == "undecided"


def test_ties_decide_nothing_even_where_they_are_rounded():
    """Accuracies are sums of float32 over batches: two that are equal may differ in the eighth digit."""
    for noise in (0.0, 1e-9, -1e-9):
        found = paired_difference({0: 0.1, 1: 0.2}, {0: 0.1 + noise, 1: 0.2 + noise})
        assert (found.mean, found.low, found.high, found.verdict) == (0.0, 0.0, 0.0, "undecided")


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.1, 0.2, "holds"),
        (-0.2, -0.1, "does not hold"),
        (-0.1, 0.2, "undecided"),
        (0.0, 0.2, "undecided"),
        (-0.2, 0.0, "undecided"),
        (math.nan, math.nan, "undecided"),
    ],
)
def test_verdicts(low, high, verdict):
    assert Difference((low + high) / 2, low, high, 3).verdict == verdict


def test_the_same_gap_for_three_seeds_is_sure_and_for_two_is_not():
    found = paired_difference({0: 1.5, 1: 2.5}, {0: 1.0, 1: 2.0})
    assert (found.low, found.high, found.verdict) == (0.5, 0.5, "undecided")
    found = paired_difference({0: 1.5, 1: 2.5, 2: 3.5}, {0: 1.0, 1: 2.0, 2: 3.0})
    assert (found.low, found.high, found.verdict) == (0.5, 0.5, "holds")


def test_the_spread_is_that_of_a_sample():
    values = draws(range(7))
    found = spread(values)
    assert found.mean == pytest.approx(np.mean(list(values.values())))
    assert found.deviation == pytest.approx(np.std(list(values.values()), ddof=1))
    assert found.count == 7
    one = spread({4: 2.0})
    assert (one.mean, one.count) == (2.0, 1)
    assert math.isnan(one.deviation)
