"""Some queries and keys of other masks."""

from __future__ import annotations

import torch

import topomask as tm
from helpers.graphs import ragged_batch, ragged_graph, signed_graph
from helpers.mask_cases.enrolment import Case, enrol_selection
from helpers.mask_cases.grids import toeplitz_mask
from helpers.mask_cases.neighbourhoods import degree_mask, shortest_path_mask
from helpers.mask_cases.positions import position_mask
from helpers.mask_cases.walks import visit_mask, walk_mask


@enrol_selection
def selected_visit() -> Case:
    mask = visit_mask(ragged_graph(), num_heads=2, normalize=True)
    return Case(mask, torch.tensor([3, 0, 4, 3]), torch.tensor([1, 2, 4, 8, 9]))


@enrol_selection
def selected_diffusion() -> Case:
    mask = tm.DiffusionMask(signed_graph(), "normalized_laplacian", time=[0.4, 2.0], num_heads=2).double()
    return Case(mask, torch.tensor([3, 0, 4, 3]), torch.tensor([1, 2, 4, 5, 6, 6]))


@enrol_selection
def selected_position() -> Case:
    return Case(position_mask(11, num_heads=2), torch.tensor([3, 0, 4, 3]), torch.tensor([1, 2, 4, 8, 9]))


@enrol_selection
def selected_neighbor() -> Case:
    mask = tm.NeighborMask(signed_graph(), weighted=True).double()
    return Case(mask, torch.tensor([3, 0, 4, 3]), torch.tensor([1, 2, 4, 0, 0]))


@enrol_selection
def selected_shortest_path() -> Case:
    mask = shortest_path_mask(ragged_batch(), num_heads=2, max_distance=3)
    return Case(mask, torch.tensor([3, 0, 4, 3]), torch.tensor([1, 2, 4, 0, 0, 20]))


@enrol_selection
def selected_walk() -> Case:
    return Case(walk_mask(ragged_graph(), num_heads=2), torch.tensor([3, 0, 4, 3]), torch.tensor([1, 2, 4, 8, 9]))


@enrol_selection
def selected_asymmetric() -> Case:
    # One node holds two keys.
    mask = walk_mask(ragged_graph(), num_heads=2, symmetric=False)
    return Case(mask, torch.tensor([0, 1, 2, 3, 4]), torch.tensor([3, 0, 0, 1, 2, 4]))


@enrol_selection
def selected_prefix() -> Case:
    mask = tm.PrefixMask(walk_mask(ragged_graph(), num_heads=2))
    return Case(mask, torch.tensor([0, 4, 5]), None)


@enrol_selection
def selected_toeplitz() -> Case:
    return Case(toeplitz_mask((3, 4), num_heads=2), torch.tensor([3, 0, 4, 3]), torch.tensor([1, 2, 11, 8, 9]))


@enrol_selection
def selected_sum() -> Case:
    mask = walk_mask(ragged_graph(), num_heads=2) - walk_mask(ragged_graph(), symmetric=False)
    return Case(mask, torch.tensor([3, 0, 4, 3]), torch.tensor([1, 2, 4, 8, 9]))


@enrol_selection
def selected_kronecker() -> Case:
    mask = tm.KroneckerMask(walk_mask(tm.path_graph(3)), walk_mask(ragged_graph(), symmetric=False))
    return Case(mask, torch.tensor([32, 0, 5]), torch.tensor([1, 12, 12, 30]))


@enrol_selection
def selected_shared_heads() -> Case:
    mask = walk_mask(ragged_batch(), num_heads=2, shared_heads=True)
    return Case(mask, torch.tensor([13, 0, 4, 13]), torch.tensor([1, 2, 14, 8, 9]))


@enrol_selection
def selected_all_pairs() -> Case:
    return Case(tm.AllPairsMask(ragged_batch()).double(), torch.tensor([13, 0, 4, 13]), torch.tensor([1, 2, 14, 8, 9]))


@enrol_selection
def selected_degree() -> Case:
    mask = degree_mask(ragged_batch(), num_heads=2, max_degree=3)
    return Case(mask, torch.tensor([13, 0, 4, 13]), torch.tensor([1, 2, 14, 8, 9, 9]))
