"""Nodes with more neighbours than a frontier has entries."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from topomask.ops import segments
from topomask.ops.expand_frontiers import Edges
from topomask.ops.expand_frontiers.ordering import magnitudes, tie_hashes


class CutEdges(NamedTuple):
    """Edges of which hubs have kept no more than a frontier has entries."""

    row_ptr: np.ndarray  # [N + 1]
    columns: np.ndarray  # [nnz]
    values: np.ndarray  # [nnz]
    rest: np.ndarray  # [N], norm of the values that were cut off


def cut_hubs(edges: Edges, width: int, euclidean: bool) -> CutEdges:
    """Keep the first ``width`` neighbours of every node, in the order of pruning."""
    row_ptr, columns, values = edges.row_ptr.numpy(), edges.columns.numpy(), edges.values.numpy()
    degrees = np.diff(row_ptr)
    hubs = np.flatnonzero(degrees > width)
    if not len(hubs):
        return CutEdges(row_ptr, columns, values, np.zeros(len(degrees)))
    taken = segments.ranges(torch.from_numpy(row_ptr[hubs]), torch.from_numpy(degrees[hubs])).numpy()
    hub = np.repeat(np.arange(len(hubs)), degrees[hubs])
    ties = tie_hashes(edges.ids[hubs[hub]], edges.ids[columns[taken]])
    order = np.lexsort((columns[taken], ties, -magnitudes(values[taken]), hub))
    rank = np.arange(len(taken)) - np.repeat(np.cumsum(degrees[hubs]) - degrees[hubs], degrees[hubs])
    dropped = np.sort(order[rank >= width])
    rest = np.zeros(len(degrees))
    rest[hubs] = norms(hub[dropped], values[taken[dropped]], len(hubs), euclidean)
    kept = np.ones(len(columns), dtype=bool)
    kept[taken[dropped]] = False
    counts = np.minimum(degrees, width)
    return CutEdges(np.concatenate([[0], np.cumsum(counts)]), columns[kept], values[kept], rest)


def norms(groups: np.ndarray, values: np.ndarray, num_groups: int, euclidean: bool) -> np.ndarray:
    """The norm of the values of every group, added up one after the other as they come."""
    terms = values * values if euclidean else np.abs(values)
    # Not np.add.reduceat, which adds up pairwise.
    sums = np.bincount(groups, terms, num_groups)
    return np.sqrt(sums) if euclidean else sums
