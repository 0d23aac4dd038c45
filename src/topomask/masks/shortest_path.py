"""A mask of shortest-path distances."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import dijkstra
from torch import Tensor, nn
from torch.nn import functional as F

from topomask.graph import Graph
from topomask.graph_input import Array, check_integer
from topomask.masks.base import Entries, sparse_multiply
from topomask.masks.dense import dense_product
from topomask.masks.graph_mask import GraphMask
from topomask.modulation import table_per_head
from topomask.ops import segments
from topomask.ops.locality import suggest_order
from topomask.ops.pair_attention import MIN_ENTRIES_PER_ROW, TileWork
from topomask.ops.sparse_product import Pattern, make_pattern

# Pairs of nodes of the same graph, which is one graph of 8,192 nodes: with 8 heads, their weights in float32 take 2 GB,
# and it takes seconds to find their distances.
MAX_NODE_PAIRS = 1 << 26

DEFAULT_MAX_DISTANCE = 8
# The lanes of a tile.
_TILE = 16
# Nodes of small graphs that go to SciPy in one call, and distances that one call returns.
_NODES_PER_CALL = 256
_DISTANCES_PER_CALL = 1 << 22

# Numbers of hops, which all masks on a graph share.
_hops: WeakKeyDictionary[Graph, Array] = WeakKeyDictionary()


class ShortestPathMask(GraphMask):
    r"""A learnable weight per shortest-path distance, for small graphs: O(N^2).

    .. math:: M_{ij} = w_{b(i, j)}, \qquad b(i, j) = \min(\mathrm{dist}(i, j), \texttt{max\_distance})

    With ``bias=True``, :math:`M_{ij} = \exp w_{b(i, j)}`, so that softmax attention is the one of Graphormer,
    :math:`\mathrm{softmax}(q_i^\top k_j / \sqrt D + w_{b(i, j)})`.

    Distances are numbers of hops, along the direction of edges from i to j. They are computed once per graph and
    kept as small integers. Nodes of different graphs of a batch never see each other, and no weights are formed for
    them but by the strategy ``"dense"``.

    Args:
        graph: The graph, or a batch, with up to 67,108,864 (8,192 squared) pairs of nodes of the same graph.
        num_heads: Heads; each has its own weights.
        max_distance: This distance and any larger one share one weight. Default: 8.
        boundaries: Take sums of edge weights as distances, and these ends of their buckets, ascending: bucket 0 holds
            distances up to ``boundaries[0]``, bucket b those above ``boundaries[b - 1]`` and up to ``boundaries[b]``,
            the last one all above. Not together with ``max_distance``.
        initial: Initial weights (with ``bias=True``, biases) per bucket, [K] or [H, K] with K = max_distance + 1 or
            len(boundaries) + 1. Default: :math:`2^{-b}`, or biases 0, where attention starts as if there were no mask.
        unreachable: Initial weight (or bias) of pairs in one graph without a path, which is then learnt too. Default:
            they have weight 0 for good.
        bias: Learn biases inside the exponential of softmax attention.

    Example:
        >>> import topomask as tm
        >>> tm.ShortestPathMask(tm.path_graph(3), max_distance=2).to_dense()
        tensor([[[1.0000, 0.5000, 0.2500],
                 [0.5000, 1.0000, 0.5000],
                 [0.2500, 0.5000, 1.0000]]], grad_fn=<...>)

    References:
        Ying et al. (2021), Eq. 6; Reid et al. (2025), App. B.3.
    """

    def __init__(
        self,
        graph: Graph,
        num_heads: int = 1,
        max_distance: int | None = None,
        *,
        boundaries: Sequence[float] | None = None,
        initial: Tensor | None = None,
        unreachable: float | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__()
        check_integer("num_heads", num_heads, 1)
        self._boundaries = None if boundaries is None else _check_boundaries(boundaries, max_distance)
        if self._boundaries is None:
            max_distance = DEFAULT_MAX_DISTANCE if max_distance is None else max_distance
            check_integer("max_distance", max_distance, 0, torch.iinfo(torch.int16).max - 1)
            size, text = max_distance + 1, f"max_distance + 1={max_distance + 1}"
        else:
            size, text = len(self._boundaries) + 1, f"len(boundaries) + 1={len(self._boundaries) + 1}"
        if initial is None:
            initial = torch.zeros(size) if bias else 0.5 ** torch.arange(size)
        start = table_per_head("initial", initial, num_heads, size, text, "bucket of distances from 0 on")
        self._num_buckets = size
        self._learns_unreachable = unreachable is not None
        if unreachable is not None:
            if not np.isfinite(unreachable):
                raise ValueError(f"`unreachable` must be finite, but is {unreachable!r}. Leave it out for weight 0.")
            start = F.pad(start, (0, 1), value=float(unreachable))
        self.bias, self.num_heads = bias, num_heads
        self._bind(graph)
        self.weight = nn.Parameter(start)
        self._follow(self.weight)

    def _bind(self, graph: Graph) -> None:
        sizes = np.bincount(graph.graph_index, minlength=graph.num_graphs)
        self._num_pairs = int((sizes**2).sum())
        if self._num_pairs > MAX_NODE_PAIRS:
            raise ValueError(
                f"`graph` must have at most {MAX_NODE_PAIRS:,} pairs of nodes of the same graph, but has "
                f"{self._num_pairs:,}, and a weight is formed for each. Use WalkMask, or ForestMask if it is a forest, "
                "which never form them; or batches of fewer graphs."
            )
        super()._bind(graph)
        self._buckets = self._find_buckets(graph)  # [P], pairs of nodes of the same graph, row by row
        if self._groups is not None:
            self._pairs = _PairsOfBatch(self._groups, graph.num_graphs, self.num_heads)
        tiled = graph.num_graphs > 1 and self._num_pairs >= MIN_ENTRIES_PER_ROW * graph.num_nodes
        # Nodes of a graph see the same keys, so tiles are full, but for those at the end of a graph.
        keys = self.num_heads * int((sizes * -(-sizes // _TILE)).sum())
        self._tile_work = TileWork(keys, 0) if tiled else None

    def _find_buckets(self, graph: Graph) -> Tensor:
        beyond = self._num_buckets
        if self._boundaries is None:
            hops = _count_hops(graph)
            buckets = np.where(hops < 0, beyond, np.minimum(hops, beyond - 1))
        else:
            if graph.signed:
                raise ValueError(
                    "`graph` has negative weights, which are no lengths. Leave `boundaries` out to count hops."
                )
            bounds = np.array(self._boundaries)
            parts = [
                np.where(np.isfinite(found), np.searchsorted(bounds, found), beyond).astype(np.int16)
                for found in _distances(graph, graph.weights)
            ]
            buckets = np.concatenate(parts)
        small = torch.uint8 if beyond <= torch.iinfo(torch.uint8).max else torch.int16
        return torch.tensor(buckets, dtype=small, device="cpu")

    def table(self) -> Tensor:
        """The weight of every head and bucket, and at last of pairs without a path, [H, K + 1]."""
        weight = self.weight.to(torch.promote_types(self.weight.dtype, torch.float32))
        table = weight.exp() if self.bias else weight.abs() if self._is_magnitude else weight
        return table if self._learns_unreachable else F.pad(table, (0, 1))

    def _pair_values(self) -> Tensor:
        """The weight of every pair of nodes of the same graph, [H, P]."""
        return self.table().gather(1, self._buckets.long().expand(self.num_heads, -1))

    def product(self) -> Callable[[Tensor], Tensor]:
        """Multiplication by M with its entries computed once."""
        if self._groups is None:
            dense = self.dense_weights()
            return lambda x: dense_product(dense, x)
        pattern, values = self.pattern(), self._pair_values().flatten()
        return lambda x: sparse_multiply(pattern, values, x, self.num_heads)

    def matmul(self, x: Tensor) -> Tensor:
        """M x, graph by graph."""
        return self.product()(x)

    def rmatmul(self, x: Tensor) -> Tensor:
        """M^T x, graph by graph."""
        if self._groups is None:
            return dense_product(self.dense_weights().mT, x)
        return sparse_multiply(self.pattern(), self._pair_values().flatten(), x, self.num_heads, transpose=True)

    def to_dense(self) -> Tensor:
        """M, [H, N, N]."""
        values, shape = self._pair_values(), (self.num_heads, self.num_queries, self.num_keys)
        if self._groups is None:
            return values.view(shape)
        same = self._groups[:, None] == self._groups
        return values.new_zeros(shape).masked_scatter(same, values)

    def magnitude(self) -> ShortestPathMask:
        """The absolute weights; the mask itself where they are exponentials."""
        return self if self.bias or self._is_magnitude else self._magnitude_view()

    def pattern(self) -> Pattern:
        """Pairs of nodes of the same graph of a batch."""
        return super().pattern() if self._groups is None else _constant_pattern(self._pairs, self.structure)

    def entries(self) -> Entries:
        """The weights of pairs of nodes of the same graph of a batch."""
        return super().entries() if self._groups is None else self._keep("entries", self._entries)

    def _entries(self) -> Entries:
        values, magnitude = self._pair_values().flatten(), self.magnitude()
        return Entries(self.pattern(), values, values if magnitude is self else magnitude._pair_values().flatten())

    @property
    def num_pairs_bound(self) -> int | None:
        """Pairs of nodes of the same graph of a batch; None for one graph, which is dense."""
        return None if self._groups is None else self.num_heads * self._num_pairs

    @property
    def tile_work(self) -> TileWork | None:
        """The work of attention over the pairs of a batch in tiles."""
        return self._tile_work if self._buckets.device.type == "cpu" else None

    @property
    def product_cost(self) -> int:
        """Pairs of nodes of the same graph."""
        return self.num_heads * self._num_pairs

    @property
    def dense_cost(self) -> int:
        """Nothing: entries are looked up."""
        return 0

    @property
    def refresh_cost(self) -> int:
        """Entries to look up, unless they are kept; twice where the magnitude has its own."""
        return 0 if self._is_frozen() else self.product_cost * (1 if self.bias else 2)

    def _move(self, device: torch.device, dtype: torch.dtype) -> None:
        super()._move(device, dtype)
        self._buckets = self._buckets.to(device)
        if self._groups is not None:
            self._pairs = _PairsOfBatch(self._groups, self.num_graphs, self.num_heads)

    def extra_repr(self) -> str:
        """Shown when the module is printed."""
        ends = f"max_distance={self._num_buckets - 1}" if self._boundaries is None else f"boundaries={self._boundaries}"
        return f"{super().extra_repr()}, {ends}, bias={self.bias}"


@dataclass(frozen=True, eq=False)
class _PairsOfBatch:
    """All pairs of nodes of the same graph, block-diagonal over heads and graphs; indexed at first use."""

    groups: Tensor  # [N]
    num_graphs: int
    num_heads: int

    @cached_property
    def pattern(self) -> Pattern:
        """[H * N, H * N]."""
        num_rows = self.num_heads * len(self.groups)
        with torch.inference_mode(False):
            sizes = torch.bincount(self.groups, minlength=self.num_graphs)
            shifts = torch.arange(0, num_rows, len(self.groups), device=sizes.device)[:, None]
            starts = shifts + segments.pointers(sizes)[self.groups]
            counts = sizes[self.groups].repeat(self.num_heads)
            columns = segments.ranges(starts.flatten(), counts)
            pattern = make_pattern(segments.pointers(counts), columns, num_rows)
        # Nodes of a graph are neighbours already.
        suggest_order(pattern.columns, self, _PairsOfBatch._as_they_come)
        return pattern

    def _as_they_come(self) -> Tensor:
        return torch.arange(self.num_heads * len(self.groups), device="cpu")


@torch.compiler.assume_constant_result
def _constant_pattern(pairs: _PairsOfBatch, structure: str) -> Pattern:  # noqa: ARG001
    """The compiler need not look into how the pattern comes about, but for the name of the structure."""
    return pairs.pattern


def _check_boundaries(boundaries: Sequence[float], max_distance: int | None) -> tuple[float, ...]:
    if max_distance is not None:
        raise ValueError("`boundaries` and `max_distance` say the same thing for weighted and plain graphs. Pass one.")
    ends = np.asarray(boundaries, dtype=np.float64)
    if ends.ndim != 1 or not ends.size or not np.isfinite(ends).all() or ends[0] < 0 or (np.diff(ends) <= 0).any():
        raise ValueError(
            f"`boundaries` must be finite numbers of at least 0 in ascending order, but is {boundaries!r}. "
            "Sort them and leave out duplicates."
        )
    check_integer("len(boundaries)", ends.size, 1, torch.iinfo(torch.int16).max - 1)
    return tuple(ends.tolist())


def _count_hops(graph: Graph) -> Array:
    """Hops from i to j for pairs of nodes of the same graph, row by row, [P]; -1 without a path. Computed once."""
    if graph not in _hops:
        parts = (
            np.where(np.isfinite(found), found, -1).astype(np.int16)
            for found in _distances(graph, np.ones(len(graph.indices)))
        )
        _hops[graph] = np.concatenate(list(parts))
    return _hops[graph]


def _distances(graph: Graph, lengths: Array) -> Iterator[Array]:
    """Distances from i to j for pairs of nodes of the same graph, row by row, some rows at a time."""
    starts = np.searchsorted(graph.graph_index, np.arange(graph.num_graphs))
    starts = starts[starts < graph.num_nodes]
    # Graphs that begin in the same stretch of nodes go to SciPy together: a call for each would take longer.
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
