"""Masks of random walks: estimates and visits."""

from __future__ import annotations

import torch

import topomask as tm
from helpers.graphs import directed_graph, ragged_batch, ragged_graph, signed_graph, star_graph
from helpers.mask_cases.enrolment import enrol


def random_f(num_heads: int, max_length: int, seed: int = 0) -> torch.Tensor:
    """A modulation with both signs."""
    return torch.randn(num_heads, max_length + 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def walk_mask(graph: tm.Graph, num_heads: int = 1, max_length: int = 3, **options) -> tm.WalkMask:
    f = options.pop("f", random_f(num_heads, max_length))
    options = {"num_walks": 6, "seed": 1} | options
    return tm.WalkMask(graph, max_length=max_length, num_heads=num_heads, f=f, **options).double()


@enrol
def walk_symmetric() -> tm.Mask:
    return walk_mask(ragged_graph(), num_heads=2)


@enrol
def walk_symmetric_iid_halting() -> tm.Mask:
    return walk_mask(ragged_graph(), num_heads=2, coupling="iid", halt_prob=0.3)


@enrol
def walk_shared() -> tm.Mask:
    return walk_mask(ragged_graph(), shared_walks=True, coupling="antithetic", halt_prob=0.2)


@enrol
def walk_positive() -> tm.Mask:
    return walk_mask(tm.grid_graph(3, 4), num_heads=3, f=random_f(3, 3).abs() + 0.1, positive=True)


@enrol
def walk_signed_graph() -> tm.Mask:
    return walk_mask(signed_graph(), f=random_f(1, 3).abs() + 0.1, positive=True)


@enrol
def walk_asymmetric() -> tm.Mask:
    return walk_mask(ragged_graph(), num_heads=2, symmetric=False)


@enrol
def walk_directed() -> tm.Mask:
    return walk_mask(directed_graph(), num_heads=2, symmetric=False)


@enrol
def walk_unnormalized() -> tm.Mask:
    return walk_mask(directed_graph(), symmetric=False, normalization="none", max_length=2)


@enrol
def walk_single_node() -> tm.Mask:
    return walk_mask(tm.path_graph(1))


@enrol
def walk_batch() -> tm.Mask:
    return walk_mask(ragged_batch(), num_heads=2)


@enrol
def walk_shared_heads() -> tm.Mask:
    return walk_mask(ragged_graph(), num_heads=2, shared_heads=True)


@enrol
def walk_shared_heads_asymmetric() -> tm.Mask:
    return walk_mask(directed_graph(), num_heads=3, shared_heads=True, symmetric=False)


@enrol
def walk_shared_heads_batch() -> tm.Mask:
    return walk_mask(ragged_batch(), num_heads=2, shared_heads=True, shared_walks=True)


@enrol
def walk_hub() -> tm.Mask:
    return walk_mask(star_graph(62), max_length=2)


def frontier_mask(graph: tm.Graph, num_heads: int = 1, max_length: int = 3, **options) -> tm.WalkMask:
    options = {"prune": "largest", "width": 4, "f": random_f(num_heads, max_length)} | options
    return tm.WalkMask(graph, max_length=max_length, num_heads=num_heads, **options).double()


@enrol
def largest_symmetric() -> tm.Mask:
    return frontier_mask(ragged_graph(), num_heads=2)


@enrol
def largest_directed() -> tm.Mask:
    return frontier_mask(directed_graph(), num_heads=2, symmetric=False, max_entries=6)


@enrol
def largest_batch() -> tm.Mask:
    return frontier_mask(ragged_batch(), num_heads=2, f=random_f(2, 3).abs() + 0.1, positive=True)


@enrol
def largest_hub() -> tm.Mask:
    return frontier_mask(star_graph(62), max_length=2)


@enrol
def resampled_symmetric() -> tm.Mask:
    return frontier_mask(ragged_graph(), num_heads=2, prune="resample", seed=1)


@enrol
def resampled_signed_batch() -> tm.Mask:
    return frontier_mask(signed_graph(), num_heads=3, prune="resample", symmetric=False, shared_heads=True, seed=1)


def visit_mask(graph: tm.Graph, num_heads: int = 1, max_length: int = 3, **options) -> tm.VisitMask:
    f = options.pop("f", random_f(num_heads, max_length))
    options = {"num_walks": 6, "seed": 1} | options
    return tm.VisitMask(graph, max_length=max_length, num_heads=num_heads, f=f, **options).double()


@enrol
def visit_shared() -> tm.Mask:
    return visit_mask(ragged_graph(), num_heads=2)


@enrol
def visit_normalized() -> tm.Mask:
    return visit_mask(ragged_batch(), num_heads=2, normalize=True)


@enrol
def visit_own_walks() -> tm.Mask:
    return visit_mask(directed_graph(), shared_walks=False, normalize=True, coupling="iid", halt_prob=0.2)


@enrol
def visit_frequencies() -> tm.Mask:
    return visit_mask(signed_graph(), num_heads=3, f=None)


@enrol
def visit_shared_heads() -> tm.Mask:
    return visit_mask(ragged_graph(), num_heads=2, shared_heads=True, normalize=True)


@enrol
def visit_single_node() -> tm.Mask:
    return visit_mask(tm.path_graph(1))
