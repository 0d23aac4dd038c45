"""Masks of grids: Toeplitz matrices and hypercubes."""

from __future__ import annotations

import torch

import topomask as tm
from helpers.mask_cases.enrolment import enrol


def toeplitz_mask(shape, num_heads: int = 1, **options) -> tm.ToeplitzMask:
    """With entries of both signs, or of both sizes."""
    mask = tm.ToeplitzMask(shape, num_heads=num_heads, **options).double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in mask.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return mask


@enrol
def toeplitz_sequence() -> tm.Mask:
    return toeplitz_mask(9, num_heads=2)


@enrol
def toeplitz_positive() -> tm.Mask:
    return toeplitz_mask(7, num_heads=2, positive=True)


@enrol
def toeplitz_causal() -> tm.Mask:
    return toeplitz_mask(10, num_heads=2, causal=True)


@enrol
def toeplitz_causal_positive() -> tm.Mask:
    return toeplitz_mask(6, causal=True, positive=True)


@enrol
def toeplitz_causal_table() -> tm.Mask:
    return toeplitz_mask(6, num_heads=2, causal=True, distance="l1")


@enrol
def toeplitz_grid() -> tm.Mask:
    return toeplitz_mask((3, 4), num_heads=2)


@enrol
def toeplitz_grid_positive() -> tm.Mask:
    return toeplitz_mask((4, 2), positive=True)


@enrol
def toeplitz_space() -> tm.Mask:
    return toeplitz_mask((2, 3, 4), num_heads=2)


@enrol
def toeplitz_single_node() -> tm.Mask:
    return toeplitz_mask((1,), num_heads=2)


@enrol
def toeplitz_row() -> tm.Mask:
    return toeplitz_mask((1, 5))


@enrol
def toeplitz_column() -> tm.Mask:
    return toeplitz_mask((5, 1, 2))


@enrol
def toeplitz_table() -> tm.Mask:
    return toeplitz_mask((4, 3), num_heads=2, distance="l2")


@enrol
def toeplitz_table_positive() -> tm.Mask:
    return toeplitz_mask((2, 2, 3), distance="linf", positive=True)


@enrol
def toeplitz_decay() -> tm.Mask:
    return toeplitz_mask((3, 3), num_heads=2, distance="l1", f=tm.ExponentialDecay(2))


@enrol
def toeplitz_perceptron() -> tm.Mask:
    f = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    return toeplitz_mask((3, 4), num_heads=2, distance="l2", f=f)


@enrol
def hypercube() -> tm.Mask:
    # Two factors.
    return tm.HypercubeMask(6, num_heads=2, rate=torch.tensor([0.3, 1.0], dtype=torch.float64))


@enrol
def hypercube_small() -> tm.Mask:
    return tm.HypercubeMask(3, rate=torch.tensor(0.7, dtype=torch.float64))


@enrol
def hypercube_single_node() -> tm.Mask:
    return tm.HypercubeMask(0, num_heads=2).double()
