"""Draws of walkers, compiled.

Nodes and positions are unsigned here: Numba would look at every signed index whether it counts from the end.
"""

from __future__ import annotations

import numpy as np
from numba import njit

IID, ANTITHETIC, REPELLING = 0, 1, 2
COUPLINGS = {"iid": IID, "antithetic": ANTITHETIC, "repelling": REPELLING}

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_ONE = np.uint64(1)


@njit(forceinline=True, error_model="numpy", _nrt=False)
def absorb(state, word):
    """The hash state after one more word."""
    x = (state + _GOLDEN) ^ np.uint64(word)
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


@njit(forceinline=True, error_model="numpy", _nrt=False)
def uniform(state):
    """A float64 in [0, 1) with 53 random bits."""
    return np.float64(np.int64(state >> np.uint64(11))) * 2.0**-53


@njit(forceinline=True, error_model="numpy", _nrt=False)
def fraction(x):
    """What is left of x in [0, 2) without its integer part."""
    return x - 1.0 if x >= 1.0 else x


@njit(forceinline=True, error_model="numpy", _nrt=False)
def choose(cumulative, degrees, unit_weights, here, begin, degree, quantile):
    """Position of the edge whose share of the node's total weight holds the quantile."""
    if unit_weights:
        # The total weight is the degree, and a float64 below 2**53 keeps all its digits as an int64.
        place = np.uint64(np.int64(quantile * np.float64(np.int64(degree))))
        return begin + min(place, degree - _ONE)
    target = quantile * degrees[here]
    low, high = np.uint64(0), degree - _ONE
    while low < high:
        middle = (low + high) >> _ONE
        if cumulative[begin + middle] > target:
            high = middle
        else:
            low = middle + _ONE
    return begin + low


@njit(forceinline=True, error_model="numpy", _nrt=False)
def draw_singly(move, halt, number, step, halt_prob, coupling):
    """The quantile of a walker that goes its own way, negative if it halts."""
    if halt_prob > 0.0:
        if coupling == ANTITHETIC:
            halting = fraction(uniform(absorb(absorb(halt, number // 2), step)) + 0.5 * (number % 2))
        else:
            halting = uniform(absorb(absorb(halt, number), step))
        if halting < halt_prob:
            return -1.0
    return uniform(absorb(absorb(move, number), step))
