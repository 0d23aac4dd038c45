r"""Rows of powers of W as sparse loads, without sampling: expand a frontier by one step, prune it, and go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.backend import implementation
from topomask.ops.sample_walks import Loads

# Purposes of a draw; 0 and 1 are those of walks.
PRUNE, HUB, TIE = 2, 3, 4


class Edges(NamedTuple):
    """The matrix W of a graph and what else frontiers need of it, as CPU tensors."""

    row_ptr: Tensor  # [N + 1], int64
    columns: Tensor  # [nnz], int32 where that holds all nodes, else int64, ascending in every row
    values: Tensor  # [nnz], float64
    ids: Tensor  # [N], int64
    growth: Tensor  # [N], by what one step multiplies an error of the row of a node at most

    def check(self) -> None:
        """Raise a ValueError unless edges lead to nodes, and every edge and node has its numbers."""
        segments.check_once(_check_edges, list(self))

    @classmethod
    def trusted(cls, **given: Any) -> Edges:
        """Edges that were just computed; from now on, nobody may write to them."""
        edges = cls(**given)
        segments.mark_checked(_check_edges, list(edges))
        return edges


def _check_edges(row_ptr: Tensor, columns: Tensor, values: Tensor, ids: Tensor, growth: Tensor) -> None:
    num_nodes = len(row_ptr) - 1
    segments.check_indices("columns", columns, num_nodes)
    segments.check_pointers("row_ptr", row_ptr, len(columns))
    segments.check_integers("ids", ids)
    if segments.first_repeat(columns, row_ptr) is not None:
        raise ValueError("`columns` must be unique and ascending in every row. Sort them and merge repeated ones.")
    if values.shape != columns.shape or any(x.shape != (num_nodes,) for x in (ids, growth)):
        raise ValueError(
            f"{num_nodes} nodes with {len(columns)} edges need a value per edge, and an id and a growth per node."
        )
    if any(x.dtype != torch.float64 or not bool(x.isfinite().all()) for x in (values, growth)):
        raise ValueError("Values and growth must be finite numbers of float64.")


@dataclass(frozen=True)
class FrontierSettings:
    """How frontiers are pruned.

    Attributes:
        width: Entries of a frontier at most.
        max_length: Number of steps L.
        prune: ``"largest"`` keeps the largest entries; ``"resample"`` thins small ones, without bias.
        max_entries: Columns of a row at most; None for no limit.
        length_weights: Weight of every length in the score of a column, [L + 1].
        tolerance: The error that a row may have, with the length weights as f; None to keep all columns.
        euclidean: Whether errors are measured in the 2-norm, not in the 1-norm.
        seed: Seed of the draws.
        ensemble: Number of the set of draws.
    """

    width: int
    max_length: int
    prune: Literal["largest", "resample"]
    max_entries: int | None
    length_weights: tuple[float, ...]
    tolerance: float | None
    euclidean: bool
    seed: int = 0
    ensemble: int = 0

    @property
    def max_loads(self) -> int:
        """Entries of all frontiers of a row at most."""
        return 1 + self.width * self.max_length


class Frontiers(NamedTuple):
    """Loads of R rows, and for ``"largest"`` how far they are off."""

    loads: Loads
    bounds: Tensor | None  # [R, L + 1], float64
    unreached: Tensor | None  # [R], whether a row has not reached the tolerance


def expand_frontiers(edges: Edges, start_nodes: Tensor, settings: FrontierSettings, heads: Sequence[int]) -> Frontiers:
    """Expand and prune the rows of ``start_nodes`` [R] for some heads; the same bits by every backend.

    Rows of W are read in order of ids, so nodes are numbered anew where their ids don't ascend.
    """
    from topomask.ops.expand_frontiers.ordering import id_order, renumber, restore

    edges.check()
    segments.check_indices("start_nodes", start_nodes, len(edges.ids))
    expand = implementation(__name__, start_nodes).expand_frontiers
    order = id_order(edges)
    if order is None:
        return expand(edges, start_nodes, settings, heads)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    found = expand(renumber(edges, order, place), place[start_nodes], settings, heads)
    return found._replace(loads=restore(found.loads, order))
