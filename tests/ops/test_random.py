import numpy as np
import torch
from scipy import stats

from topomask.ops.sample_walks import random


def test_matches_arithmetic_modulo_two_to_the_64():
    """The mixing function in plain integers."""
    bits = (1 << 64) - 1

    def absorb(state: int, word: int) -> int:
        x = ((state + 0x9E3779B97F4A7C15) & bits) ^ (word & bits)
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & bits
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & bits
        return x ^ (x >> 31)

    words = [0, 1, 2**63 - 1, 12345, 7]
    state, expected = torch.zeros((), dtype=torch.int64), 0
    for word in words:
        state, expected = random.absorb(state, word), absorb(expected, word)
    assert int(state) & bits == expected
    assert torch.equal(random.key(*words), state)
    assert float(random.uniform(state)) == (expected >> 11) * 2.0**-53


def test_draws_are_uniform_and_unrelated():
    """Kolmogorov-Smirnov and neighbour correlations on counters; each fails by chance once in a million."""
    counters = torch.arange(200_000)
    draws = random.uniform(random.absorb(random.key(1, 2, 3), counters)).numpy()
    assert draws.min() >= 0
    assert draws.max() < 1
    assert stats.kstest(draws, "uniform").pvalue > 1e-6
    other = random.uniform(random.absorb(random.key(1, 2, 4), counters)).numpy()
    for a, b in ((draws[1:], draws[:-1]), (draws, other)):
        assert abs(np.corrcoef(a, b)[0, 1]) * len(a) ** 0.5 < 4.9


def test_words_do_not_commute():
    seen = {int(random.key(*words)) for words in ((1, 2), (2, 1), (3, 0), (0, 3), (1, 2, 0), (0, 1, 2))}
    assert len(seen) == 6


def test_normal_pairs():
    """The formula in plain numbers, and Kolmogorov-Smirnov and correlation at once in a million."""
    words = torch.tensor([0, -1, 5, 2**63 - 1])
    pairs = random.normal_pair(words)
    for word, pair in zip(words.tolist(), pairs.tolist(), strict=True):
        high, low = (word & (2**64 - 1)) >> 32, word & (2**32 - 1)
        radius, angle = np.sqrt(-2.0 * np.log((high + 1) / 2**32)), 2.0 * np.pi * low / 2**32
        np.testing.assert_allclose(pair, [radius * np.cos(angle), radius * np.sin(angle)], rtol=1e-12, atol=1e-12)
    draws = random.normal_pair(random.absorb(random.key(1, 2, 3), torch.arange(100_000))).numpy()
    assert stats.kstest(draws.ravel(), "norm").pvalue > 1e-6
    assert abs(np.corrcoef(draws.T)[0, 1]) * len(draws) ** 0.5 < 4.9
