"""Sampling random walks, bare or as sparse loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.backend import implementation

# Purposes of a draw: halting and moving never share one.
MOVE, HALT = 0, 1


class GraphTensors(NamedTuple):
    """What a walk sampler reads of a graph, as CPU tensors."""

    row_ptr: Tensor  # [N + 1], int64
    columns: Tensor  # [nnz], int32 where that holds all nodes, else int64, ascending in every row
    cumulative: Tensor  # [nnz], running sum of |weights| in every row
    signs: Tensor | None  # [nnz], None when no weight is negative
    degrees: Tensor  # [N]
    ids: Tensor  # [N]
    unit_weights: bool

    def check(self) -> None:
        """A ValueError unless edges lead to nodes, and every edge and node has its numbers."""
        segments.check_once(_check_graph, self._tensors())

    def _tensors(self) -> tuple[Tensor, ...]:
        row_ptr, columns, cumulative, signs, degrees, ids, _ = self
        return (row_ptr, columns, degrees, ids, cumulative, *(() if signs is None else (signs,)))

    @classmethod
    def trusted(cls, **given: Any) -> GraphTensors:
        """Those that were just computed; from now on, nobody may write to them."""
        tensors = cls(**given)
        segments.mark_checked(_check_graph, tensors._tensors())
        return tensors


def _check_graph(row_ptr: Tensor, columns: Tensor, degrees: Tensor, ids: Tensor, *per_edge: Tensor) -> None:
    num_nodes = len(row_ptr) - 1
    segments.check_indices("columns", columns, num_nodes)
    segments.check_pointers("row_ptr", row_ptr, len(columns))
    segments.check_integers("ids", ids)
    if any(values.dtype != torch.float64 for values in (degrees, *per_edge)):
        raise ValueError("Degrees, running sums and signs must have dtype float64.")
    if any(x.shape != columns.shape for x in per_edge) or any(x.shape != (num_nodes,) for x in (degrees, ids)):
        raise ValueError(
            f"A graph of {num_nodes} nodes with {len(columns)} entries needs as many degrees and ids, and as many "
            "running sums and signs."
        )


@dataclass(frozen=True)
class WalkSettings:
    """How walks are drawn and what they leave behind."""

    num_walks: int
    max_length: int
    halt_prob: float
    coupling: str
    normalization: Literal["sym", "row", "none"]
    seed: int
    ensemble: int
    weighting: Literal["importance", "visits"] = "importance"

    def divisor(self, length: int) -> float:
        """What the sum over walkers that are somewhere after ``length`` steps is divided by."""
        survival = (1.0 - self.halt_prob) ** length if self.weighting == "importance" else 1.0
        return self.num_walks * survival


class Loads(NamedTuple):
    """Loads of R rows as compressed sparse rows over (row, column), with (length, load) pairs inside."""

    row_ptr: Tensor  # [R + 1], where the columns of every row begin
    columns: Tensor  # [P], int32 where that holds all nodes, else int64
    entry_ptr: Tensor  # [P + 1], where the lengths of every column begin; int32 where that surely holds all
    lengths: Tensor  # [T], uint8 where that holds all lengths, else int16
    loads: Tensor  # [T]


def length_dtype(max_length: int) -> torch.dtype:
    """The dtype of lengths: uint8 where it holds all of them."""
    return torch.uint8 if max_length <= torch.iinfo(torch.uint8).max else torch.int16


def sample_walks(
    graph: GraphTensors, start_nodes: Tensor, settings: WalkSettings, heads: Sequence[int], dtype: torch.dtype
) -> Loads:
    """Sample walks from ``start_nodes`` [R] for some heads, loads in ``dtype``; the same bits by every backend."""
    graph.check()
    segments.check_indices("start_nodes", start_nodes, len(graph.degrees))
    return implementation(__name__, start_nodes).sample_walks(graph, start_nodes, settings, heads, dtype)


def random_walks(graph: GraphTensors, start_nodes: Tensor, settings: WalkSettings, head: int) -> Tensor:
    """The walks that :func:`sample_walks` follows: visited nodes [R, W, L + 1], -1 once a walker has ended."""
    graph.check()
    segments.check_indices("start_nodes", start_nodes, len(graph.degrees))
    return implementation(__name__, start_nodes).random_walks(graph, start_nodes, settings, head)
