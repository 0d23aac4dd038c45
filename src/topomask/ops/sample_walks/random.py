"""Counter-based random numbers: a draw is a hash of its purpose, so it does not depend on the order of execution.

Words are absorbed one after the other, each through a full mixing round; they are never added or xored to each other.
All arithmetic is on int64 modulo 2^64, which gives the same results on every device.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)) * _FIRST
    x = (x ^ _shift_right(x, 27)) * _SECOND
    return x ^ _shift_right(x, 31)


def absorb(state: Tensor, word: Tensor | int) -> Tensor:
    """Return the hash state after one more word; shapes broadcast."""
    return _mix((state + _GOLDEN) ^ word)


def key(*words: int) -> Tensor:
    """Return the hash state [] after some plain integers."""
    state = torch.zeros((), dtype=torch.int64, device="cpu")
    for word in words:
        state = absorb(state, word)
    return state


def uniform(state: Tensor) -> Tensor:
    """Return a float64 in [0, 1) with 53 random bits."""
    return _shift_right(state, 11).to(torch.float64) * 2.0**-53


def normal_pair(state: Tensor) -> Tensor:
    """Return two independent standard normals per state, [..., 2], in float64 (Box-Muller, 32 random bits each)."""
    radius = (-2.0 * ((_shift_right(state, 32) + 1).to(torch.float64) * 2.0**-32).log()).sqrt()
    angle = (state & 0xFFFFFFFF).to(torch.float64) * (2.0 * math.pi * 2.0**-32)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=-1)
