"""Masks of stochastic positions."""

from __future__ import annotations

import torch

import topomask as tm
from helpers.graphs import sequence_batch
from helpers.mask_cases.enrolment import enrol


def position_mask(graph: tm.Graph | int, num_heads: int = 1, **options) -> tm.StochasticPositionMask:
    options = {"num_realizations": 24, "seed": 3} | options
    num_nodes = None if isinstance(graph, tm.Graph) else graph
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(5)
        mask = tm.StochasticPositionMask(num_nodes, num_heads=num_heads, **options).double()
        for parameter in mask.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    if isinstance(graph, tm.Graph):
        mask.graph = graph
    return mask


@enrol
def position_sine() -> tm.Mask:
    return position_mask(11, num_heads=2, num_sines=2)


@enrol
def position_sine_plain() -> tm.Mask:
    return position_mask(63, gated=False, num_realizations=5)


@enrol
def position_conv() -> tm.Mask:
    return position_mask(13, num_heads=3, kind="conv", kernel_size=4)


@enrol
def position_conv_long() -> tm.Mask:
    return position_mask(2, kind="conv", kernel_size=7, gated=False)


@enrol
def position_exact() -> tm.Mask:
    return position_mask(12, num_heads=2, num_realizations=None, seed=None)


@enrol
def position_single_node() -> tm.Mask:
    return position_mask(1)


@enrol
def position_sine_batch() -> tm.Mask:
    return position_mask(sequence_batch(), num_heads=2, num_sines=1)


@enrol
def position_conv_batch() -> tm.Mask:
    return position_mask(sequence_batch(), num_heads=2, kind="conv", kernel_size=3)
