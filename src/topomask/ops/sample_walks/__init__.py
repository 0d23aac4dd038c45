"""Sampling random walks, as visited nodes or as sparse loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.backend import implementation

# Purposes of a random draw, which are part of its hash.
MOVE, HALT = 0, 1


class GraphTensors(NamedTuple):
    """The part of a graph that walk samplers read, as CPU tensors."""

    row_ptr: Tensor  # [N + 1], int64
    columns: Tensor  # [nnz], int32 if that holds all nodes, else int64, ascending in every row
    cumulative: Tensor  # [nnz], running sum of |weights| in every row
    signs: Tensor | None  # [nnz], None when no weight is negative
    degrees: Tensor  # [N]
    ids: Tensor  # [N]
    unit_weights: bool

    def check(self) -> None:
        """Raise a ValueError unless all edges lead to nodes, and there is one value per edge or node."""
        segments.check_once(_check_graph, self._tensors())

    def _tensors(self) -> tuple[Tensor, ...]:
        row_ptr, columns, cumulative, signs, degrees, ids, _ = self
        return (row_ptr, columns, degrees, ids, cumulative, *(() if signs is None else (signs,)))

    @classmethod
    def trusted(cls, **given: Any) -> GraphTensors:
        """Create a record of tensors that were just computed, without checks; nobody may write to them afterwards."""
        tensors = cls(**given)
        segments.mark_checked(_check_graph, tensors._tensors())
        return tensors


def _check_graph(row_ptr: Tensor, columns: Tensor, degrees: Tensor, ids: Tensor, *per_edge: Tensor) -> None:
    num_nodes = len(row_ptr) - 1
    segments.check_indices("columns", columns, num_nodes)
    segments.check_pointers("row_ptr", row_ptr, len(columns))
    segments.check_integers("ids", ids)
    if any(values.dtype != torch.float64 for values in (degrees, *per_edge)):
        raise ValueError("`degrees`, `cumulative` and `signs` must have dtype float64. Convert them with .double().")
    if any(x.shape != columns.shape for x in per_edge) or any(x.shape != (num_nodes,) for x in (degrees, ids)):
        raise ValueError(
            f"`degrees` and `ids` must have one value for each of the {num_nodes} nodes, and `cumulative` and `signs` "
            f"one for each of the {len(columns)} edges."
        )


@dataclass(frozen=True)
class WalkSettings:
    """How walks are sampled, and how their loads are computed."""

    num_walks: int
    max_length: int
    halt_prob: float
    coupling: str
    normalization: Literal["sym", "row", "none"]
    seed: int
    ensemble: int
    weighting: Literal["importance", "visits"] = "importance"

    def divisor(self, length: int) -> float:
        """Return what sums over the walkers at a node after ``length`` steps are divided by."""
        survival = (1.0 - self.halt_prob) ** length if self.weighting == "importance" else 1.0
        return self.num_walks * survival


class Loads(NamedTuple):
    """Loads of R rows as compressed sparse rows over (row, column), each with (length, load) pairs."""

    row_ptr: Tensor  # [R + 1], where the columns of every row begin
    columns: Tensor  # [P], int32 if that holds all nodes, else int64
    entry_ptr: Tensor  # [P + 1], where the lengths of every column begin; int32 if that is certain to hold all
    lengths: Tensor  # [T], uint8 if that holds all lengths, else int16
    loads: Tensor  # [T]


def length_dtype(max_length: int) -> torch.dtype:
    """Return the dtype of lengths: uint8 if that holds all of them, else int16."""
    return torch.uint8 if max_length <= torch.iinfo(torch.uint8).max else torch.int16


def sample_walks(
    graph: GraphTensors, start_nodes: Tensor, settings: WalkSettings, heads: Sequence[int], dtype: torch.dtype
) -> Loads:
    """Sample walks from ``start_nodes`` [R] for some heads, with loads in ``dtype``; backends give the same bits."""
    graph.check()
    segments.check_indices("start_nodes", start_nodes, len(graph.degrees))
    return implementation(__name__, start_nodes).sample_walks(graph, start_nodes, settings, heads, dtype)


def random_walks(graph: GraphTensors, start_nodes: Tensor, settings: WalkSettings, head: int) -> Tensor:
    """Return the walks that :func:`sample_walks` follows: visited nodes [R, W, L + 1], -1 once a walker has ended."""
    graph.check()
    segments.check_indices("start_nodes", start_nodes, len(graph.degrees))
    return implementation(__name__, start_nodes).random_walks(graph, start_nodes, settings, head)
