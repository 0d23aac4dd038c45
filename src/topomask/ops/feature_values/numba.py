"""Graph random features from loads and modulation, compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numba import prange
from torch import Tensor

from topomask.ops.backend import Kernel, arrays
from topomask.ops.feature_values import Walks

# Blocks of entries whose sums are kept apart, so that threads do not meet; a fixed number gives fixed sums.
_NUM_BLOCKS = 64


class _Entries(NamedTuple):
    entry_ptr: np.ndarray  # [P + 1]
    lengths: np.ndarray  # [T]
    loads: np.ndarray  # [T]


def _forward(f, pair_ptr, entries, out):
    """Values of all pairs; head h owns the pairs from pair_ptr[h] to pair_ptr[h + 1]."""
    for head in range(f.shape[0]):
        first = pair_ptr[head]
        for p in prange(pair_ptr[head + 1] - first):
            total = f.dtype.type(0)
            for entry in range(entries.entry_ptr[first + p], entries.entry_ptr[first + p + 1]):
                total += f[head, entries.lengths[entry]] * entries.loads[entry]
            out[first + p] = total


def _forward_shared(f, entries, out):
    """Values of all pairs for every head, [H, P]."""
    for p in prange(out.shape[1]):
        for head in range(f.shape[0]):
            total = f.dtype.type(0)
            for entry in range(entries.entry_ptr[p], entries.entry_ptr[p + 1]):
                total += f[head, entries.lengths[entry]] * entries.loads[entry]
            out[head, p] = total


def _backward(grad, pair_ptr, entries, parts):
    """The derivative in f, in float64, one summand [H, L + 1] per block of pairs."""
    blocks = parts.shape[0]
    for block in prange(blocks):
        for head in range(parts.shape[1]):
            first, count = pair_ptr[head], pair_ptr[head + 1] - pair_ptr[head]
            for p in range(first + block * count // blocks, first + (block + 1) * count // blocks):
                g = np.float64(grad[p])
                for entry in range(entries.entry_ptr[p], entries.entry_ptr[p + 1]):
                    parts[block, head, entries.lengths[entry]] += g * entries.loads[entry]


def _backward_shared(grad, entries, parts):
    """The derivative in f for walks that heads share."""
    blocks, count = parts.shape[0], grad.shape[1]
    for block in prange(blocks):
        for p in range(block * count // blocks, (block + 1) * count // blocks):
            for head in range(parts.shape[1]):
                g = np.float64(grad[head, p])
                for entry in range(entries.entry_ptr[p], entries.entry_ptr[p + 1]):
                    parts[block, head, entries.lengths[entry]] += g * entries.loads[entry]


_forward_kernel, _forward_shared_kernel = Kernel(_forward), Kernel(_forward_shared)
_backward_kernel, _backward_shared_kernel = Kernel(_backward), Kernel(_backward_shared)


def _entries(walks: Walks) -> _Entries:
    return _Entries(*arrays(walks.entry_ptr, walks.lengths, walks.loads))


def _pair_ptr(head_ptr: Tensor, entry_ptr: Tensor) -> Tensor:
    """Where the pairs of every head begin, from where its entries begin."""
    return torch.searchsorted(entry_ptr, head_ptr)


def feature_values(f: Tensor, walks: Walks) -> Tensor:
    """The sum of f[head, length] * load over the entries of every (node, visited node), [P] or [H, P]."""
    num_pairs = len(walks.entry_ptr) - 1
    if walks.head_ptr is None:
        out = walks.loads.new_empty(len(f), num_pairs)
        _forward_shared_kernel(*arrays(f), _entries(walks), out.numpy())
        return out
    out = walks.loads.new_empty(num_pairs)
    _forward_kernel(*arrays(f, _pair_ptr(walks.head_ptr, walks.entry_ptr)), _entries(walks), out.numpy())
    return out


def feature_values_backward(grad: Tensor, num_lengths: int, walks: Walks) -> Tensor:
    """The derivative in f, [H, L + 1]."""
    num_heads = len(grad) if walks.head_ptr is None else len(walks.head_ptr) - 1
    parts = torch.zeros(_NUM_BLOCKS, num_heads, num_lengths, dtype=torch.float64, device="cpu")
    if walks.head_ptr is None:
        _backward_shared_kernel(*arrays(grad), _entries(walks), parts.numpy())
    else:
        pair_ptr = _pair_ptr(walks.head_ptr, walks.entry_ptr)
        _backward_kernel(*arrays(grad, pair_ptr), _entries(walks), parts.numpy())
    return parts.sum(dim=0).to(grad.dtype)
