"""Graphs and masks that every law is tested on. A new mask is enrolled by one decorated factory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

import topomask as tm

MaskFactory = Callable[[], tm.Mask]
MASKS: dict[str, MaskFactory] = {}


def enrol(factory: MaskFactory) -> MaskFactory:
    MASKS[factory.__name__] = factory
    return factory


def ragged_graph() -> tm.Graph:
    """Two components, an isolated node, a self-loop, unequal weights."""
    rng = np.random.default_rng(3)
    edges = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 3), (5, 6), (6, 7), (7, 8), (8, 5), (6, 8), (9, 10), (3, 9)]
    return tm.Graph.from_edges(edges, num_nodes=11, weights=rng.uniform(0.5, 2.0, len(edges)))


def directed_graph() -> tm.Graph:
    """Unequal weights, a sink and a node without edges."""
    rng = np.random.default_rng(4)
    edges = [(0, 1), (1, 0), (1, 2), (2, 3), (0, 3), (4, 0), (4, 4), (6, 1)]
    return tm.Graph.from_edges(edges, num_nodes=7, weights=rng.uniform(0.5, 2.0, len(edges)), directed=True)


def signed_graph() -> tm.Graph:
    edges = [(0, 1), (1, 2), (2, 3), (3, 0), (1, 3), (4, 5)]
    return tm.Graph.from_edges(edges, num_nodes=7, weights=[1.0, -0.5, 2.0, -1.0, 0.7, -1.0], signed=True)


def star_graph(num_leaves: int) -> tm.Graph:
    leaves = np.arange(1, num_leaves + 1)
    return tm.Graph.from_edges(np.stack([np.zeros_like(leaves), leaves]), num_leaves + 1)


def ragged_batch() -> tm.Graph:
    return tm.Graph.batch([tm.path_graph(1), tm.cycle_graph(5), ragged_graph(), tm.grid_graph(2, 3)])


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
def walk_hub() -> tm.Mask:
    return walk_mask(star_graph(62), max_length=2)


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
def visit_single_node() -> tm.Mask:
    return visit_mask(tm.path_graph(1))


@enrol
def selected_visit() -> tm.Mask:
    mask = visit_mask(ragged_graph(), num_heads=2, normalize=True)
    return mask.select(torch.tensor([3, 0, 4, 3]), torch.tensor([1, 2, 4, 8, 9]))


@enrol
def power_series() -> tm.Mask:
    return tm.PowerSeriesMask(ragged_graph(), random_f(2, 4))


@enrol
def power_series_directed() -> tm.Mask:
    return tm.PowerSeriesMask(directed_graph(), random_f(1, 3)[0])


@enrol
def power_series_signed() -> tm.Mask:
    return tm.PowerSeriesMask(signed_graph(), random_f(1, 3), normalization="none")


@enrol
def power_series_edge_weights() -> tm.Mask:
    graph = ragged_graph()
    weights = torch.nn.Parameter(graph.to_edge_index()[1] * 1.5)
    return tm.PowerSeriesMask(graph, random_f(1, 3), edge_weights=weights)


@enrol
def diffusion_laplacian() -> tm.Mask:
    return tm.DiffusionMask(ragged_graph(), "laplacian", [0.3, 2.0], num_heads=2).double()


@enrol
def diffusion_normalized() -> tm.Mask:
    return tm.DiffusionMask(ragged_batch(), "normalized_laplacian", [0.5, 8.0], num_heads=2).double()


@enrol
def diffusion_adjacency() -> tm.Mask:
    return tm.DiffusionMask(ragged_batch(), "negated_adjacency", 1.2).double()


@enrol
def diffusion_signed() -> tm.Mask:
    return tm.DiffusionMask(signed_graph(), "laplacian", [0.4, 0.9, 1.5], num_heads=3).double()


@enrol
def diffusion_tolerance() -> tm.Mask:
    return tm.DiffusionMask(tm.grid_graph(7, 9), "laplacian", 0.7, tolerance=1e-13).double()


@enrol
def diffusion_single_node() -> tm.Mask:
    return tm.DiffusionMask(tm.path_graph(1), "normalized_laplacian").double()


@enrol
def prefix_diffusion() -> tm.Mask:
    return tm.PrefixMask(tm.DiffusionMask(ragged_graph(), "laplacian", [0.3, 2.0], num_heads=2).double())


@enrol
def selected_diffusion() -> tm.Mask:
    mask = tm.DiffusionMask(signed_graph(), "normalized_laplacian", [0.4, 2.0], num_heads=2).double()
    return mask.select(torch.tensor([3, 0, 4, 3]), torch.tensor([1, 2, 4, 5, 6, 6]))


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
def prefix_walk() -> tm.Mask:
    return tm.PrefixMask(walk_mask(ragged_graph(), num_heads=2), num_prefix=2)


@enrol
def prefix_batch() -> tm.Mask:
    return tm.PrefixMask(walk_mask(ragged_batch(), num_heads=2, symmetric=False), num_prefix=2)


@enrol
def prefix_power_series() -> tm.Mask:
    return tm.PrefixMask(tm.PowerSeriesMask(ragged_graph(), random_f(1, 2)))


@enrol
def selected_walk() -> tm.Mask:
    return walk_mask(ragged_graph(), num_heads=2).select(torch.tensor([3, 0, 4, 3]), torch.tensor([1, 2, 4, 8, 9]))


@enrol
def selected_asymmetric() -> tm.Mask:
    # One node holds two keys.
    mask = walk_mask(ragged_graph(), num_heads=2, symmetric=False)
    return mask.select(torch.tensor([0, 1, 2, 3, 4]), torch.tensor([3, 0, 0, 1, 2, 4]))


@enrol
def selected_prefix() -> tm.Mask:
    mask = tm.PrefixMask(walk_mask(ragged_graph(), num_heads=2))
    return mask.select(torch.tensor([0, 4, 5]), None)
