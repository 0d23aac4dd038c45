"""Masks of distances in forests."""

from __future__ import annotations

import numpy as np
import torch

import topomask as tm
from helpers.graphs import small_forest
from helpers.mask_cases.enrolment import enrol
from helpers.mask_cases.walks import random_f


def forest_mask(graph: tm.Graph, num_heads: int = 2, **options) -> tm.Mask:
    mask = tm.ForestMask(graph, num_heads=num_heads, **options).double()
    with torch.no_grad():
        for parameter in mask.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, dtype=torch.float64))
    return mask


@enrol
def forest_exponential() -> tm.Mask:
    return forest_mask(small_forest())


@enrol
def forest_weighted() -> tm.Mask:
    return forest_mask(small_forest(np.random.default_rng(1).uniform(0.1, 2.0, 9)), weighted=True)


@enrol
def forest_growing() -> tm.Mask:
    return forest_mask(small_forest(), 1, rate=-0.3, growing=True)


@enrol
def forest_sum_of_exponentials() -> tm.Mask:
    return forest_mask(small_forest(), num_terms=3)


@enrol
def forest_table() -> tm.Mask:
    return forest_mask(small_forest(), table=random_f(2, 5))


@enrol
def forest_short_table() -> tm.Mask:
    return forest_mask(small_forest(), table=random_f(2, 1))


@enrol
def forest_whole_lengths() -> tm.Mask:
    return forest_mask(small_forest(np.arange(1, 10)), table=random_f(2, 20), weighted=True)


@enrol
def forest_batch() -> tm.Mask:
    return forest_mask(tm.Graph.batch([tm.path_graph(1), small_forest(), tm.path_graph(6)]), table=random_f(2, 4))
