"""Graph random features from loads and modulation, compiled."""

from __future__ import annotations

import numpy as np
import torch
from numba import prange
from torch import Tensor

from topomask.ops.backend import Kernel, arrays

# Blocks of entries whose sums are kept apart, so that threads do not meet; a fixed number gives fixed sums.
_NUM_BLOCKS = 64


def _forward(f, pair_heads, entry_ptr, lengths, loads, out):
    """Values of all pairs; head h owns the pairs from pair_heads[h] to pair_heads[h + 1]."""
    for head in range(f.shape[0]):
        first = pair_heads[head]
        for p in prange(pair_heads[head + 1] - first):
            total = f.dtype.type(0)
            for entry in range(entry_ptr[first + p], entry_ptr[first + p + 1]):
                total += f[head, lengths[entry]] * loads[entry]
            out[first + p] = total


def _backward(grad, pair_heads, entry_ptr, lengths, loads, parts):
    """The derivative in f, in float64, one summand [H, L + 1] per block of pairs."""
    blocks = parts.shape[0]
    for block in prange(blocks):
        for head in range(parts.shape[1]):
            first, count = pair_heads[head], pair_heads[head + 1] - pair_heads[head]
            for p in range(first + block * count // blocks, first + (block + 1) * count // blocks):
                g = np.float64(grad[p])
                for entry in range(entry_ptr[p], entry_ptr[p + 1]):
                    parts[block, head, lengths[entry]] += g * loads[entry]


_forward_kernel, _backward_kernel = Kernel(_forward), Kernel(_backward)


def _pair_heads(head_ptr: Tensor, entry_ptr: Tensor) -> Tensor:
    """Where the pairs of every head begin, from where its entries begin."""
    return torch.searchsorted(entry_ptr, head_ptr)


def feature_values(f: Tensor, head_ptr: Tensor, entry_ptr: Tensor, lengths: Tensor, loads: Tensor) -> Tensor:
    """The sum of f[head, length] * load over the entries of every (node, visited node), [P]."""
    out = loads.new_empty(len(entry_ptr) - 1)
    _forward_kernel(*arrays(f, _pair_heads(head_ptr, entry_ptr), entry_ptr, lengths, loads), out.numpy())
    return out


def feature_values_backward(
    grad: Tensor, num_lengths: int, head_ptr: Tensor, entry_ptr: Tensor, lengths: Tensor, loads: Tensor
) -> Tensor:
    """The derivative in f, [H, L + 1]."""
    parts = torch.zeros(_NUM_BLOCKS, len(head_ptr) - 1, num_lengths, dtype=torch.float64, device="cpu")
    _backward_kernel(*arrays(grad, _pair_heads(head_ptr, entry_ptr), entry_ptr, lengths, loads), parts.numpy())
    return parts.sum(dim=0).to(grad.dtype)
