"""Masks of shortest-path distances."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import dijkstra
from torch import Tensor, nn
from torch.nn import functional as F

from topomask.graph import Graph
from topomask.graph.input import Array, check_integer
from topomask.graph.records import Recipe, Record, find_record
from topomask.masks.dense import DenseOperator
from topomask.masks.entries import Entries
from topomask.masks.graph_blocks import BlocksRecipe, GraphBlocks, blocks_pattern
from topomask.masks.mask import GraphMask
from topomask.masks.operator import Operator
from topomask.masks.sparse import SparseOperator
from topomask.ops.registration import has_values
from topomask.walks.modulation import table_per_head

# Pairs of nodes of the same graph, as in one graph of 8,192 nodes: with 8 heads, their weights in float32 take 2 GB,
# and their distances take seconds to compute.
MAX_NODE_PAIRS = 1 << 26

DEFAULT_MAX_DISTANCE = 8
# Exponentials of larger biases are computed in float64: float32 overflows at 88.
MAX_BIAS = 40.0
# Inside torch.compile and torch.func, where values cannot be inspected, biases are clamped to this size.
MAX_COMPILED_BIAS = 80.0
# Nodes of small graphs that are passed to SciPy in one call, and distances that one call returns.
_NODES_PER_CALL = 256
_DISTANCES_PER_CALL = 1 << 22


class ShortestPathMask(GraphMask):
    r"""A learnable weight per shortest-path distance, for small graphs: O(N^2).

    .. math:: M_{ij} = w_{b(i, j)}, \qquad b(i, j) = \min(\mathrm{dist}(i, j), \texttt{max\_distance})

    With ``bias=True``, :math:`M_{ij} = \exp w_{b(i, j)}`, so that softmax attention is that of Graphormer,
    :math:`\mathrm{softmax}(q_i^\top k_j / \sqrt D + w_{b(i, j)})`.

    Distances are numbers of hops, along the direction of edges from i to j. They are computed once per graph and
    stored as small integers. Nodes of different graphs of a batch never attend to each other, and only the strategy
    ``"dense"`` computes weights for them.

    Args:
        graph: The default graph, or a batch of graphs, with up to 67,108,864 (8,192 squared) pairs of nodes of the same
            graph.
        num_heads: Heads; each has its own weights.
        max_distance: This distance and all larger ones share one weight. Default: 8.
        boundaries: Use sums of edge weights as distances, with these upper ends of their buckets, ascending: bucket 0
            holds distances up to ``boundaries[0]``, bucket b those above ``boundaries[b - 1]`` and up to
            ``boundaries[b]``, and the last bucket all above. Excludes ``max_distance``.
        initial: Initial weights (with ``bias=True``, biases) per bucket, [K] or [H, K] with K = max_distance + 1 or
            len(boundaries) + 1. Default: :math:`2^{-b}`, or biases 0, with which attention starts unmasked.
        unreachable: Initial weight (or bias) of pairs of the same graph without a path, which is then learnt too.
            Default: a fixed weight of 0.
        bias: Learn biases inside the exponential of softmax attention. If one is above 40 or below -40, exponentials
            and attention are computed in float64, which holds biases up to 700; not inside ``torch.compile``.

    Example:
        >>> import topomask as tm
        >>> tm.ShortestPathMask(tm.path_graph(3), max_distance=2).to_dense()
        tensor([[[1.0000, 0.5000, 0.2500],
                 [0.5000, 1.0000, 0.5000],
                 [0.2500, 0.5000, 1.0000]]], grad_fn=<...>)

    References:
        Ying et al. (2021), Eq. 6; Reid et al. (2025), App. B.3.
    """

    _recipe: _BucketRecipe

    def __init__(
        self,
        graph: Graph | None = None,
        *,
        num_heads: int = 1,
        max_distance: int | None = None,
        boundaries: Sequence[float] | None = None,
        initial: Tensor | None = None,
        unreachable: float | None = None,
        bias: bool = False,
    ) -> None:
        check_integer("num_heads", num_heads, 1)
        super().__init__(graph, num_heads)
        ends = None if boundaries is None else _check_boundaries(boundaries, max_distance)
        max_distance = DEFAULT_MAX_DISTANCE if max_distance is None else max_distance
        check_integer("max_distance", max_distance, 0, torch.iinfo(torch.int16).max - 1)
        size = max_distance + 1 if ends is None else len(ends) + 1
        text = f"{'max_distance' if ends is None else 'len(boundaries)'} + 1={size}"
        if initial is None:
            initial = torch.zeros(size) if bias else 0.5 ** torch.arange(size)
        start = table_per_head("initial", initial, num_heads, size, text, "bucket of distances from 0")
        self._learns_unreachable = unreachable is not None
        if unreachable is not None:
            if not np.isfinite(unreachable):
                raise ValueError(f"`unreachable` must be finite, but is {unreachable!r}. Leave it out for weight 0.")
            start = F.pad(start, (0, 1), value=float(unreachable))
        self.bias, self.weight = bias, nn.Parameter(start)
        self._recipe = _BucketRecipe(size, ends, BlocksRecipe.of(num_heads)).shared()
        if graph is not None and not start.is_meta:
            self._record(graph)

    def table(self) -> Tensor:
        """Return the weight of every head and bucket, and last of pairs without a path, [H, K + 1]."""
        weight = self.weight.to(torch.promote_types(self.weight.dtype, torch.float32))
        if self.bias and self._is_extreme():
            weight = weight.double()
        elif self.bias and not has_values(weight):
            # Whether float32 is enough is unknown, and infinite exponentials would spread.
            weight = weight.clamp(-MAX_COMPILED_BIAS, MAX_COMPILED_BIAS)
        table = weight.exp() if self.bias else weight
        return table if self._learns_unreachable else F.pad(table, (0, 1))

    def _is_extreme(self) -> bool:
        """Whether exponentials of the biases leave the range of float32; False if that is unknown."""
        weight = self.weight
        if not has_values(weight) or weight.device.type != "cpu" or not weight.numel():
            return False
        return bool(weight.detach().abs().amax() > MAX_BIAS)

    def _operator(self, graph: Graph, record: _Buckets) -> Operator:
        # The weight of every pair of nodes of the same graph, [H, P].
        values = self.table().gather(1, record.buckets.long().expand(self.num_heads, -1))
        operator: Operator
        # One lookup per entry, two if the magnitude differs.
        refresh = values.numel() * (1 if self.bias else 2)
        if graph.num_graphs == 1:
            operator = DenseOperator(self, values.unflatten(1, (graph.num_nodes, graph.num_nodes)), self.bias, refresh)
        else:
            entries = Entries(blocks_pattern(record.blocks), values, values if self.bias else values.abs())
            operator = SparseOperator(self, graph, entries, record.blocks.tiles, refresh)
        if self.bias and self._is_extreme():
            operator._needs_float64, operator.dtype = True, torch.float64
        return operator

    def extra_repr(self) -> str:
        """Settings shown when the module is printed."""
        size, ends = self._recipe.num_buckets, self._recipe.boundaries
        text = f"max_distance={size - 1}" if ends is None else f"boundaries={ends}"
        return f"{super().extra_repr()}, {text}, bias={self.bias}"


@dataclass(eq=False)
class _Buckets(Record):
    buckets: Tensor  # of pairs of nodes of the same graph, row by row, [P]
    blocks: GraphBlocks


@dataclass(frozen=True)
class _BucketRecipe(Recipe):
    num_buckets: int
    boundaries: tuple[float, ...] | None
    blocks: BlocksRecipe

    def make(self, graph: Graph, device: torch.device, dtype: torch.dtype) -> _Buckets:  # noqa: ARG002
        blocks = self.blocks.find(graph, device)
        if blocks.num_pairs > MAX_NODE_PAIRS:
            raise ValueError(
                f"`graph` must have at most {MAX_NODE_PAIRS:,} pairs of nodes of the same graph, but has "
                f"{blocks.num_pairs:,}, and each of them gets a weight. Use smaller batches, or a mask without "
                "pairs: WalkMask, or ForestMask if the graph is a forest."
            )
        small = torch.uint8 if self.num_buckets <= torch.iinfo(torch.uint8).max else torch.int16
        return _Buckets(torch.tensor(self._find(graph), dtype=small).to(device), blocks)

    def _find(self, graph: Graph) -> Array:
        beyond = self.num_buckets
        if self.boundaries is None:
            hops = find_record(graph, _HOPS, torch.device("cpu"), torch.float32)
            return np.where(hops < 0, beyond, np.minimum(hops, beyond - 1))
        if graph.signed:
            raise ValueError(
                "`graph` has negative weights, which cannot be lengths. Leave `boundaries` out to count hops."
            )
        return np.concatenate(
            [
                np.where(np.isfinite(found), np.searchsorted(self.boundaries, found), beyond).astype(np.int16)
                for found in _distances(graph, graph.weights)
            ]
        )


@dataclass(frozen=True)
class _HopsRecipe(Recipe):
    """Hops from i to j for pairs of nodes of the same graph, row by row, [P]; -1 without a path."""

    def make(self, graph: Graph, device: torch.device, dtype: torch.dtype) -> Array:  # noqa: ARG002
        parts = _distances(graph, np.ones(len(graph.indices)))
        return np.concatenate([np.where(np.isfinite(found), found, -1).astype(np.int16) for found in parts])


# All masks on a graph share its hops.
_HOPS = _HopsRecipe().shared()


def _check_boundaries(boundaries: Sequence[float], max_distance: int | None) -> tuple[float, ...]:
    if max_distance is not None:
        raise ValueError("`boundaries` is for weighted distances, and `max_distance` for hops. Pass only one of them.")
    ends = np.asarray(boundaries, dtype=np.float64)
    if ends.ndim != 1 or not ends.size or not np.isfinite(ends).all() or ends[0] < 0 or (np.diff(ends) <= 0).any():
        raise ValueError(
            f"`boundaries` must be nonnegative, finite and strictly ascending, but is {boundaries!r}. "
            "Sort them and remove duplicates."
        )
    check_integer("len(boundaries)", ends.size, 1, torch.iinfo(torch.int16).max - 1)
    return tuple(ends.tolist())


def _distances(graph: Graph, lengths: Array) -> Iterator[Array]:
    """Yield distances from i to j for pairs of nodes of the same graph, row by row, a few rows at a time."""
    starts = np.searchsorted(graph.graph_index, np.arange(graph.num_graphs))
    starts = starts[starts < graph.num_nodes]
    # Graphs that begin in the same range of nodes share a SciPy call: one call per graph would take longer.
    first = starts[np.unique(starts // _NODES_PER_CALL, return_index=True)[1]]
    for begin, end in zip(first, [*first[1:], graph.num_nodes], strict=True):
        span = slice(graph.indptr[begin], graph.indptr[end])
        parts = lengths[span], graph.indices[span] - begin, graph.indptr[begin : end + 1] - graph.indptr[begin]
        block = sp.csr_array(parts, shape=(end - begin, end - begin))
        groups = graph.graph_index[begin:end]
        step = max(1, _DISTANCES_PER_CALL // max(1, end - begin))
        for row in range(0, end - begin, step):
            rows = np.arange(row, min(row + step, end - begin))
            found = dijkstra(block, directed=True, indices=rows)
            yield found[groups[rows, None] == groups]
