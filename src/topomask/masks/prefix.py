"""Prefix tokens in front of a mask, such as CLS tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from topomask.graph import Graph
from topomask.graph.input import check_integer
from topomask.masks.composition import check_masks, keep_joined, sample_walks
from topomask.masks.entries import Entries, PairSums, Shape, attend_entries, pattern_shapes
from topomask.masks.graph_blocks import spread_per_graph, sum_per_graph
from topomask.masks.mask import Mask
from topomask.masks.operator import Cost, Operator, once
from topomask.ops import segments
from topomask.ops.derived import derivation
from topomask.ops.quotient import Attended, divide
from topomask.ops.sparse_product import Pattern, make_pattern


class PrefixMask(Mask):
    r"""A mask with prefix tokens, such as CLS tokens, that attend to all tokens and are attended to by all.

    .. math:: M' = \begin{pmatrix} 1 & 1 \\ 1 & M \end{pmatrix}

    On a batch, every graph gets its own prefix tokens, which see that graph only. Tokens are ordered as (prefix of
    graph 1, prefix of graph 2, ..., nodes).

    Args:
        mask: The mask on the nodes.
        num_prefix: Prefix tokens per graph.

    Example:
        >>> import torch, topomask as tm
        >>> tm.PrefixMask(tm.DenseMask(torch.zeros(2, 2))).to_dense()
        tensor([[[1., 1., 1.],
                 [1., 0., 0.],
                 [1., 0., 0.]]])
    """

    def __init__(self, mask: Mask, num_prefix: int = 1) -> None:
        check_masks({"mask": mask})
        check_integer("num_prefix", num_prefix, 1)
        super().__init__(num_heads=mask.num_heads)
        self.mask, self.num_prefix = mask, num_prefix
        self.default_normalizer, self.takes_graph = mask.default_normalizer, mask.takes_graph

    @property
    def graph(self) -> Graph | None:
        """The graph of the mask behind the prefix."""
        return self.mask.graph

    @graph.setter
    def graph(self, graph: Graph | None) -> None:
        self.mask.graph = graph

    def sample(self, graph: Graph) -> Any:
        """Return walks of the mask behind the prefix, for :meth:`on`; None if it does not use walks."""
        return sample_walks(self.mask, graph)

    def on(self, graph: Graph | None = None, walks: Any = None) -> Operator:
        """Return the operator on a graph, with the current values of the parameters."""
        inner = self.mask.on(graph, walks)
        return keep_joined(self, [inner], lambda: PrefixOperator(inner, self.num_prefix))


class PrefixOperator(Operator):
    """Prefix tokens, ``num_prefix`` per graph, in front of the operator ``inner`` on the nodes."""

    def __init__(self, inner: Operator, num_prefix: int) -> None:
        if inner.num_queries != inner.num_keys:
            raise ValueError(f"`mask` must be square, but has {inner.num_queries} queries and {inner.num_keys} keys.")
        start = num_prefix * inner.num_graphs
        self._adopt(inner, start + inner.num_queries, start + inner.num_keys)
        self.name = "PrefixMask"
        self.is_all_ones = inner.is_all_ones
        self._inner, self._num_prefix, self._start = inner, num_prefix, start
        if inner.key_groups is not None:
            prefix = torch.arange(self.num_graphs, device=self.device).repeat_interleave(num_prefix)
            self.key_groups = torch.cat([prefix, inner.key_groups])

    def _multiply(self, x: Tensor, nodes: Tensor) -> Tensor:
        """Add what prefix tokens send and receive to the product of the nodes."""
        start, groups = self._start, self.key_groups
        is_prefix = torch.arange(x.shape[-2], device=x.device)[:, None] < start
        all_tokens, prefix = (sum_per_graph(part, groups, self.num_graphs) for part in (x, x * is_prefix))
        to_prefix = spread_per_graph(all_tokens, None if groups is None else groups[:start], start)
        to_nodes = spread_per_graph(prefix, self._inner.key_groups, self._inner.num_queries)
        return torch.cat([to_prefix, nodes + to_nodes], dim=-2).to(x.dtype)

    def matmul(self, x: Tensor) -> Tensor:
        """M' x."""
        return self._multiply(x, self._inner.matmul(x[..., self._start :, :]))

    def rmatmul(self, x: Tensor) -> Tensor:
        """M'^T x."""
        return self._multiply(x, self._inner.rmatmul(x[..., self._start :, :]))

    def product_noise(self, x: Tensor) -> Tensor | None:
        """The noise of the inner operator: sums over the prefix are exact."""
        noise = self._inner.product_noise(x[..., self._start :, :])
        return noise if noise is None or noise.shape[-2] == 1 else F.pad(noise, (0, 0, self._start, 0))

    def to_dense(self) -> Tensor:
        """M', [H, N, N]."""
        nodes, groups, start = self._inner.to_dense(), self.key_groups, self._start
        if groups is None:
            groups = torch.zeros(self.num_queries, dtype=torch.int64, device=nodes.device)
        same = (groups[:, None] == groups).to(nodes.dtype).expand(self.num_heads, -1, -1)
        return torch.cat([same[:, :start], torch.cat([same[:, start:, :start], nodes], dim=2)], dim=1)

    def magnitude(self) -> PrefixOperator:
        """The prefix in front of the magnitude of the inner operator."""
        inner = self._inner.magnitude()
        if inner is self._inner:
            return self
        return self._once("magnitude", lambda: PrefixOperator(inner, self._num_prefix))

    @once
    def entries(self) -> Entries:
        """The entries of the inner operator, and ones between a prefix token and every token of its graph."""
        inner, values, magnitudes = self._inner.entries()
        heads = self.num_heads // len(values)
        groups = [] if self.key_groups is None else [self.key_groups]
        *pattern, order = _prefix_pattern([*inner, *groups], [heads, self._num_prefix, self.num_graphs])
        # Every token attends to the prefix tokens of its graph, and they attend to it.
        ones = values.new_ones(len(values), heads * self._num_prefix * (2 * self.num_queries - self._start))
        found = torch.cat([values, ones], dim=1)[:, order]
        same = magnitudes is values
        return Entries(Pattern(*pattern), found, found if same else torch.cat([magnitudes, ones], dim=1)[:, order])

    def attend_pairs(self, q: Tensor, k: Tensor, v: Tensor, sums: PairSums, is_key: Tensor | None = None) -> Attended:
        """Attention of the inner operator over its entries, plus what prefix tokens add."""
        if sums.softmax or sums.absolute or self.num_graphs > 1:
            return attend_entries(self.entries(), self.num_heads, q, k, v, sums, is_key)
        if not sums.normalize:
            return Attended(self._sum_pairs(self._inner, q, k, v), v.new_ones(1))
        ones = v.new_ones(*v.shape[:-1], 1)
        magnitude = self._inner.magnitude() if sums.magnitudes else self._inner
        if magnitude is self._inner:
            joined = self._sum_pairs(self._inner, q, k, torch.cat([v, ones], dim=-1))
            return divide(joined[..., :-1], joined[..., -1:])
        return divide(self._sum_pairs(self._inner, q, k, v), self._sum_pairs(magnitude, q, k, ones))

    def _sum_pairs(self, inner: Operator, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return unnormalised attention [B, H, P + N, D] with an operator on the nodes behind the prefix."""
        start = self._start
        nodes = inner.attend_pairs(q[:, :, start:], k[:, :, start:], v[:, :, start:], PairSums(normalize=False)).out
        from_prefix = (q[:, :, start:] @ k[:, :, :start].mT) @ v[:, :, :start]
        prefix = (q[:, :, :start] @ k.mT) @ v
        return torch.cat([prefix, nodes + from_prefix], dim=2)

    def cost(self) -> Cost:
        """The cost of the inner operator, one pass over the tokens, and the entries of the prefix."""
        cost = self._inner.cost()
        ones = 2 * self.num_heads * self._num_prefix * self.num_queries
        return cost._replace(
            product=cost.product + 2 * self.num_heads * self.num_queries,
            refresh=0 if self._is_kept else max(1, cost.refresh),
            pairs=None if cost.pairs is None else cost.pairs + ones,
            max_pairs=None if cost.max_pairs is None else cost.max_pairs + ones,
            rank=None,
        )


def _shapes(tensors: list[Tensor], numbers: list[int]) -> list[Shape]:
    heads, num_prefix, num_graphs = numbers
    rows = tensors[0].shape[0] - 1 + heads * num_prefix * num_graphs
    count = tensors[1].shape[0] + heads * num_prefix * (2 * (rows // heads) - num_prefix * num_graphs)
    return [*pattern_shapes(rows, rows, count), (count, torch.int64)]


@derivation(_shapes)
def _prefix_pattern(tensors: list[Tensor], numbers: list[int]) -> list[Tensor]:
    """Return the pattern with a prefix, and the index of its entries in (entries of the mask, ones of the prefix)."""
    inner = Pattern(*tensors[:5])
    heads, num_prefix, num_graphs = numbers
    start = num_prefix * num_graphs
    nodes = (len(inner.row_ptr) - 1) // heads
    size = start + nodes
    row, column = segments.index(inner.row_ptr), inner.columns.long()
    head, row, column = row // max(1, nodes), row % max(1, nodes), column % max(1, nodes)
    places = (head * size + start + row) * (heads * size) + head * size + start + column
    groups = tensors[5] if len(tensors) > 5 else torch.zeros(size, dtype=torch.int64, device=row.device)
    # The ones of the first head: between every token and the prefix tokens of its graph, in both directions.
    token = torch.arange(size, device=row.device)[:, None]
    prefix = groups[:, None] * num_prefix + torch.arange(num_prefix, device=row.device)
    down, across = token * (heads * size) + prefix, prefix[start:] * (heads * size) + token[start:]
    first_head = torch.cat([down.flatten(), across.flatten()])
    shifts = torch.arange(heads, device=row.device)[:, None] * (size * heads * size + size)
    places, order = torch.cat([places, (shifts + first_head).flatten()]).sort()
    counts = torch.bincount(places // (heads * size), minlength=heads * size)
    return [*make_pattern(segments.pointers(counts), places % (heads * size), heads * size), order]
