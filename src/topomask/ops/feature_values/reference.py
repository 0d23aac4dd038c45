"""Graph random features from loads and modulation; pure torch."""

from __future__ import annotations

import torch
from torch import Tensor

from topomask.ops import segments


def feature_values(f: Tensor, head_ptr: Tensor, entry_ptr: Tensor, lengths: Tensor, loads: Tensor) -> Tensor:
    """The sum of f[head, length] * load over the entries of every (node, visited node), [P]."""
    terms = f.reshape(-1)[_places(f.shape[1], head_ptr, lengths)] * loads
    return terms.new_zeros(len(entry_ptr) - 1).index_add_(0, segments.index(entry_ptr), terms)


def feature_values_backward(
    grad: Tensor, num_lengths: int, head_ptr: Tensor, entry_ptr: Tensor, lengths: Tensor, loads: Tensor
) -> Tensor:
    """The derivative in f, [H, L + 1]. Millions of terms meet in a few sums, so they are added in float64."""
    terms = (grad[segments.index(entry_ptr)] * loads).to(torch.float64)
    total = terms.new_zeros((len(head_ptr) - 1) * num_lengths)
    total.index_add_(0, _places(num_lengths, head_ptr, lengths), terms)
    return total.view(-1, num_lengths).to(grad.dtype)


def _places(num_lengths: int, head_ptr: Tensor, lengths: Tensor) -> Tensor:
    return lengths.to(torch.int64) + num_lengths * segments.index(head_ptr)
