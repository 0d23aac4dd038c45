"""Graph random features from loads and modulation; pure torch."""

from __future__ import annotations

import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.feature_values import Walks


def feature_values(f: Tensor, walks: Walks) -> Tensor:
    """Sum f[head, length] * load over the entries of every (node, visited node), [P] or [H, P]."""
    terms = _by_entry(f, walks) * walks.loads
    pairs = segments.index(walks.entry_ptr)
    return terms.new_zeros(*terms.shape[:-1], len(walks.entry_ptr) - 1).index_add_(-1, pairs, terms)


def feature_values_backward(grad: Tensor, num_lengths: int, walks: Walks) -> Tensor:
    """Return the gradient of f, [H, L + 1]. Its few sums have up to millions of terms, so they use float64."""
    terms = (grad[..., segments.index(walks.entry_ptr)] * walks.loads).to(torch.float64)
    lengths = walks.lengths.to(torch.int64)
    if walks.head_ptr is None:
        return terms.new_zeros(len(terms), num_lengths).index_add_(1, lengths, terms).to(grad.dtype)
    num_heads = len(walks.head_ptr) - 1
    places = num_lengths * segments.index(walks.head_ptr) + lengths
    return terms.new_zeros(num_heads * num_lengths).index_add_(0, places, terms).view(num_heads, -1).to(grad.dtype)


def _by_entry(f: Tensor, walks: Walks) -> Tensor:
    """Return the value of f for every entry, [T] or [H, T]."""
    lengths = walks.lengths.to(torch.int64)
    return f[:, lengths] if walks.head_ptr is None else f[segments.index(walks.head_ptr), lengths]
