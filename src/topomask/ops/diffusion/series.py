r"""The Chebyshev series of an exponential, and how many of its terms are enough.

On [-1, 1], :math:`e^{-zb} = e^{z} \sum_k (-1)^k p_k\,T_k(b)` with :math:`p_0 = e^{-z} I_0(z)` and
:math:`p_k = 2 e^{-z} I_k(z)`. The :math:`p_k` are a probability distribution: that of :math:`|S|`, where S is a
symmetric random walk in continuous time with variance z. Its tail is therefore bounded by Chernoff's inequality.
"""

from __future__ import annotations

import math

import numpy as np

# The most terms of an expansion: each is a product with a sparse matrix.
MAX_TERMS = 8192


def tail_bound(z: float, num_terms: int) -> float:
    """Bound the sum of all terms after the first ``num_terms``, relative to the largest value of the series."""
    if z == 0 or num_terms == 0:
        return float(num_terms == 0)
    return min(1.0, 2.0 * math.exp(math.hypot(z, num_terms) - z - num_terms * math.asinh(num_terms / z)))


def count_terms(z: float, tolerance: float) -> int:
    """Return how many terms leave an error of at most ``tolerance``; more than ``MAX_TERMS`` if that is not enough."""
    enough = 1
    while tail_bound(z, enough) > tolerance:
        if enough > MAX_TERMS:
            return enough
        enough *= 2
    too_few = enough // 2
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        if tail_bound(z, middle) > tolerance:
            too_few = middle
        else:
            enough = middle
    return enough


def coefficients(z: float, num_terms: int) -> np.ndarray:
    r"""Return the coefficients :math:`(-1)^k p_k` of :math:`e^{-zb - z}`, [num_terms]."""
    # Bessel functions take a while to import, and are only needed here.
    from scipy.special import ive

    orders = np.arange(num_terms)
    terms = 2.0 * ive(orders, z)
    terms[0] /= 2.0
    return np.where(orders % 2 == 0, terms, -terms)
