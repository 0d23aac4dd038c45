"""Graph random features from loads and modulation, compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from topomask.ops.backend import BlockKernel, arrays
from topomask.ops.feature_values import Walks

# Blocks of entries with separate sums, so that threads do not interfere; a fixed number makes sums reproducible.
_NUM_BLOCKS = 64


class _Entries(NamedTuple):
    entry_ptr: np.ndarray  # [P + 1]
    lengths: np.ndarray  # [T]
    loads: np.ndarray  # [T]


def _forward(start_block, stop_block, f, pair_ptr, entries, out):
    """Compute the values of all pairs; head h owns the pairs from pair_ptr[h] to pair_ptr[h + 1]."""
    for head in range(f.shape[0]):
        first, count = pair_ptr[head], pair_ptr[head + 1] - pair_ptr[head]
        for p in range(first + start_block * count // _NUM_BLOCKS, first + stop_block * count // _NUM_BLOCKS):
            total = f.dtype.type(0)
            for entry in range(entries.entry_ptr[p], entries.entry_ptr[p + 1]):
                total += f[head, entries.lengths[entry]] * entries.loads[entry]
            out[p] = total


def _forward_shared(start_block, stop_block, f, entries, out):
    """Compute the values of all pairs for every head, [H, P]."""
    count = out.shape[1]
    for p in range(start_block * count // _NUM_BLOCKS, stop_block * count // _NUM_BLOCKS):
        for head in range(f.shape[0]):
            total = f.dtype.type(0)
            for entry in range(entries.entry_ptr[p], entries.entry_ptr[p + 1]):
                total += f[head, entries.lengths[entry]] * entries.loads[entry]
            out[head, p] = total


def _backward(start_block, stop_block, grad, pair_ptr, entries, parts):
    """Compute the gradient of f in float64, one summand [H, L + 1] per block of pairs."""
    for block in range(start_block, stop_block):
        for head in range(parts.shape[1]):
            first, count = pair_ptr[head], pair_ptr[head + 1] - pair_ptr[head]
            for p in range(first + block * count // _NUM_BLOCKS, first + (block + 1) * count // _NUM_BLOCKS):
                g = np.float64(grad[p])
                for entry in range(entries.entry_ptr[p], entries.entry_ptr[p + 1]):
                    parts[block, head, entries.lengths[entry]] += g * entries.loads[entry]


def _backward_shared(start_block, stop_block, grad, entries, parts):
    """Compute the gradient of f for walks that heads share."""
    count = grad.shape[1]
    for block in range(start_block, stop_block):
        for p in range(block * count // _NUM_BLOCKS, (block + 1) * count // _NUM_BLOCKS):
            for head in range(parts.shape[1]):
                g = np.float64(grad[head, p])
                for entry in range(entries.entry_ptr[p], entries.entry_ptr[p + 1]):
                    parts[block, head, entries.lengths[entry]] += g * entries.loads[entry]


_forward_kernel, _forward_shared_kernel = BlockKernel(_forward), BlockKernel(_forward_shared)
_backward_kernel, _backward_shared_kernel = BlockKernel(_backward), BlockKernel(_backward_shared)


def _entries(walks: Walks) -> _Entries:
    return _Entries(*arrays(walks.entry_ptr, walks.lengths, walks.loads))


def _pair_ptr(head_ptr: Tensor, entry_ptr: Tensor) -> Tensor:
    """Return where the pairs of every head begin, given where its entries begin."""
    return torch.searchsorted(entry_ptr, head_ptr)


def feature_values(f: Tensor, walks: Walks) -> Tensor:
    """Sum f[head, length] * load over the entries of every (node, visited node), [P] or [H, P]."""
    num_pairs = len(walks.entry_ptr) - 1
    if walks.head_ptr is None:
        out = walks.loads.new_empty(len(f), num_pairs)
        _forward_shared_kernel(_NUM_BLOCKS, *arrays(f), _entries(walks), out.numpy())
        return out
    out = walks.loads.new_empty(num_pairs)
    _forward_kernel(_NUM_BLOCKS, *arrays(f, _pair_ptr(walks.head_ptr, walks.entry_ptr)), _entries(walks), out.numpy())
    return out


def feature_values_backward(grad: Tensor, num_lengths: int, walks: Walks) -> Tensor:
    """Return the gradient of f, [H, L + 1]."""
    num_heads = len(grad) if walks.head_ptr is None else len(walks.head_ptr) - 1
    parts = torch.zeros(_NUM_BLOCKS, num_heads, num_lengths, dtype=torch.float64, device="cpu")
    if walks.head_ptr is None:
        _backward_shared_kernel(_NUM_BLOCKS, *arrays(grad), _entries(walks), parts.numpy())
    else:
        pair_ptr = _pair_ptr(walks.head_ptr, walks.entry_ptr)
        _backward_kernel(_NUM_BLOCKS, *arrays(grad, pair_ptr), _entries(walks), parts.numpy())
    return parts.sum(dim=0).to(grad.dtype)
