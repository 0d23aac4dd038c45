"""Powers of e of the scores of a tile, which neither overflow nor underflow."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit

from topomask.ops.backend import EXACT, FAST
from topomask.ops.pair_attention import LANES, LOWEST, MAX_EXPONENT, largest_exponent

_LOWEST = np.float32(LOWEST)
_LARGEST_EXPONENT = np.float32(largest_exponent(torch.float32))
_LOWEST_LOG = np.float32(-0.5) * _LARGEST_EXPONENT


@njit(**FAST)
def _exponentials(x, bits, count):
    """Compute powers of e in place; ``bits`` has memory for as many integers."""
    for k in range(count):
        value = min(max(x[k], np.float32(-87.0)), np.float32(88.0))
        turns = value * np.float32(1.4426950408889634)
        whole = np.int32(turns + (np.float32(0.5) if turns > 0 else np.float32(-0.5)))
        rest = value - np.float32(whole) * np.float32(0.693359375)
        rest = rest - np.float32(whole) * np.float32(-2.12194440e-4)
        power = np.float32(1.9875691500e-4)
        power = power * rest + np.float32(1.3981999507e-3)
        power = power * rest + np.float32(8.3334519073e-3)
        power = power * rest + np.float32(4.1665795894e-2)
        power = power * rest + np.float32(1.6666665459e-1)
        power = power * rest + np.float32(5.0000001201e-1)
        power = power * rest * rest + rest + np.float32(1.0)
        bits[k] = (whole + np.int32(127)) << np.int32(23)
        # NaN is preserved: x - x is not 0 then.
        x[k] = np.float32(0.0) if x[k] < np.float32(-87.0) else power + (x[k] - x[k])
    powers_of_two = bits.view(np.float32)
    for k in range(count):
        x[k] *= powers_of_two[k]


@njit(**EXACT)
def to_powers(count, magnitudes, scratch):
    """Replace scores with exp(score - shift); the shift of a lane makes its largest power times magnitude about 1.

    Args:
        count: Number of keys.
        magnitudes: [count * 16].
        scratch: Holds the scores; its ``tops`` and ``caps`` are overwritten.
    """
    scores, tops, caps = scratch.scores, scratch.tops, scratch.caps
    tops[:], caps[:] = _LOWEST, 0
    patterns = magnitudes.view(np.int32)
    for c in range(count):
        for r in range(LANES):
            x = c * LANES + r
            # The exponent of a magnitude is its logarithm up to a factor of 2, which is enough: the shift cancels.
            log = np.float32(0.6931472) * np.float32(((patterns[x] & 0x7FFFFFFF) >> 23) - 126)
            # Padding is ignored, whatever its magnitude.
            if magnitudes[x] != 0 and scores[x] > np.float32(0.9) * _LOWEST:
                tops[r] = max(tops[r], scores[x] + max(log, _LOWEST_LOG))
                caps[r] = max(caps[r], abs(magnitudes[x]))
    for r in range(LANES):
        tops[r] = tops[r] if tops[r] > np.float32(0.9) * _LOWEST else 0
        caps[r] = min(MAX_EXPONENT - np.log(caps[r]), -_LOWEST_LOG) if caps[r] > 0 else 0
    for c in range(count):
        for r in range(LANES):
            x = c * LANES + r
            exponent = scores[x] - tops[r]
            scores[x] = min(exponent, caps[r]) if magnitudes[x] == 0 else exponent
    _exponentials(scores, scratch.bits, count * LANES)


@njit(**EXACT)
def hide_keys(tile, tiles, is_key, scores):
    """Set the scores of padding to the lowest value."""
    for k in range(tiles.starts[tile], tiles.starts[tile + 1]):
        if not is_key[tiles.keys[k]]:
            first = (k - tiles.starts[tile]) * LANES
            scores[first : first + LANES] = _LOWEST
