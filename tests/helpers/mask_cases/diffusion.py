"""Diffusion and power series."""

from __future__ import annotations

import torch

import topomask as tm
from helpers.graphs import directed_graph, ragged_batch, ragged_graph, signed_graph
from helpers.mask_cases.enrolment import enrol
from helpers.mask_cases.walks import random_f


@enrol
def power_series() -> tm.Mask:
    return tm.PowerSeriesMask(ragged_graph(), random_f(2, 4))


@enrol
def power_series_directed() -> tm.Mask:
    return tm.PowerSeriesMask(directed_graph(), random_f(1, 3)[0])


@enrol
def power_series_batch() -> tm.Mask:
    return tm.PowerSeriesMask(ragged_batch(), random_f(2, 3))


@enrol
def power_series_signed() -> tm.Mask:
    return tm.PowerSeriesMask(signed_graph(), random_f(1, 3), normalization="none")


@enrol
def power_series_edge_weights() -> tm.Mask:
    graph = ragged_graph()
    weights = torch.nn.Parameter(graph.to_edge_index()[1] * 1.5)
    return tm.PowerSeriesMask(graph, random_f(1, 3), edge_weights=weights)


@enrol
def power_series_batch_edge_weights() -> tm.Mask:
    graph = ragged_batch()
    weights = torch.nn.Parameter(graph.to_edge_index()[1] * 1.5)
    return tm.PowerSeriesMask(graph, random_f(2, 3), edge_weights=weights)


@enrol
def diffusion_laplacian() -> tm.Mask:
    return tm.DiffusionMask(ragged_graph(), "laplacian", time=[0.3, 2.0], num_heads=2).double()


@enrol
def diffusion_normalized() -> tm.Mask:
    return tm.DiffusionMask(ragged_batch(), "normalized_laplacian", time=[0.5, 8.0], num_heads=2).double()


@enrol
def diffusion_adjacency() -> tm.Mask:
    return tm.DiffusionMask(ragged_batch(), "negated_adjacency", time=1.2).double()


@enrol
def diffusion_signed() -> tm.Mask:
    return tm.DiffusionMask(signed_graph(), "laplacian", time=[0.4, 0.9, 1.5], num_heads=3).double()


@enrol
def diffusion_tolerance() -> tm.Mask:
    return tm.DiffusionMask(tm.grid_graph(7, 9), "laplacian", time=0.7, tolerance=1e-13).double()


@enrol
def diffusion_single_node() -> tm.Mask:
    return tm.DiffusionMask(tm.path_graph(1), "normalized_laplacian").double()


@enrol
def diffusion_batch() -> tm.Mask:
    """Blocks of several sizes, with negative entries."""
    graph = tm.Graph.batch([signed_graph(), tm.path_graph(1), ragged_graph(), signed_graph()])
    return tm.DiffusionMask(graph, "laplacian", time=[0.3, 1.2], num_heads=2).double()
