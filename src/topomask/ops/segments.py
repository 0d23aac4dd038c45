"""Ragged arrays: values that lie one segment after the other, delimited by pointers [S + 1]."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def index(ptr: Tensor) -> Tensor:
    """The segment that every value belongs to, [ptr[-1]]."""
    return torch.repeat_interleave(torch.arange(len(ptr) - 1, device=ptr.device), ptr.diff())


def index_type(end: int) -> torch.dtype:
    """The smallest type of integers below ``end`` that torch can index with."""
    return torch.int32 if end < 2**31 else torch.int64


def pointers(counts: Tensor) -> Tensor:
    """Pointers [S + 1] from the sizes of segments [S]."""
    ptr = counts.new_zeros(len(counts) + 1, dtype=torch.int64)
    torch.cumsum(counts, dim=0, out=ptr[1:])
    return ptr


def join(parts: Sequence[Tensor]) -> Tensor:
    """Pointers of segments that lie one part after the other, from the pointers of every part."""
    return pointers(torch.cat([part.diff() for part in parts]))


def ranges(starts: Tensor, counts: Tensor) -> Tensor:
    """The integers starts[k], ..., starts[k] + counts[k] - 1 for every k, one run after the other."""
    offsets = pointers(counts)
    total = int(offsets[-1])
    return torch.arange(total, device=starts.device) + torch.repeat_interleave(starts - offsets[:-1], counts)


def cumulative_sum(values: Tensor, ptr: Tensor) -> Tensor:
    """Running sums that start anew in every segment.

    A segment's result depends on its own values alone, to the last bit, which a global cumulative sum less an offset
    would not give. Takes log2 of the longest segment passes.
    """
    out = values.clone()
    if not len(values):
        return out
    counts = ptr.diff()
    place = ranges(torch.zeros_like(counts), counts)
    longest = int(counts.max())
    shift = 1
    while shift < longest:
        shifted = torch.zeros_like(out)
        shifted[shift:] = out[:-shift]
        out = out + torch.where(place >= shift, shifted, 0.0)
        shift *= 2
    return out


def last(values: Tensor, ptr: Tensor) -> Tensor:
    """The last value of every segment, 0 for empty ones, [S]."""
    if not len(values):
        return values.new_zeros(len(ptr) - 1)
    return torch.where(ptr.diff() > 0, values[(ptr[1:] - 1).clamp(min=0)], 0.0)
