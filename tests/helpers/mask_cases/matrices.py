"""Masks of matrices that belong to no graph."""

from __future__ import annotations

import torch

import topomask as tm
from helpers.mask_cases.enrolment import enrol


@enrol
def dense() -> tm.Mask:
    return tm.DenseMask(torch.nn.Parameter(torch.randn(2, 9, 9, dtype=torch.float64)))


@enrol
def dense_rectangular() -> tm.Mask:
    return tm.DenseMask(torch.randn(5, 8, dtype=torch.float64))


@enrol
def low_rank() -> tm.Mask:
    u, v = torch.randn(2, 2, 10, 3, dtype=torch.float64)
    return tm.LowRankMask(torch.nn.Parameter(u), torch.nn.Parameter(v))


@enrol
def learned_features() -> tm.Mask:
    mask = tm.LearnedFeatureMask(9, num_features=3, num_heads=2).double()
    torch.nn.init.normal_(mask.features)
    return mask


@enrol
def learned_features_full() -> tm.Mask:
    return tm.LearnedFeatureMask(7).double()
