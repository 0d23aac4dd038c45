"""Some rows and columns of a mask."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from topomask.masks.base import Entries, Mask
from topomask.masks.submatrix import gather, scatter
from topomask.ops import segments
from topomask.ops.sparse_product import Pattern, make_pattern


class SelectedMask(Mask):
    """The rows ``query_nodes`` and columns ``key_nodes`` of a mask, for cross-attention.

    Args:
        mask: The mask.
        query_nodes: Node of every query, [N_q]. Default: all nodes in order.
        key_nodes: Node of every key, [N_k]. Default: all nodes in order.
    """

    def __init__(self, mask: Mask, query_nodes: Tensor | None = None, key_nodes: Tensor | None = None) -> None:
        super().__init__()
        self.mask = mask
        self._query_nodes, self._key_nodes = query_nodes, key_nodes
        self.num_heads, self.num_graphs = mask.num_heads, mask.num_graphs
        self.default_normalizer = mask.default_normalizer
        self.num_queries = mask.num_queries if query_nodes is None else len(query_nodes)
        self.num_keys = mask.num_keys if key_nodes is None else len(key_nodes)
        self._copies = _largest_count(query_nodes) * _largest_count(key_nodes)

    def product(self) -> Callable[[Tensor], Tensor]:
        """Put keys on their nodes, multiply, and read the queries' nodes."""
        inner = self.mask.product()
        return lambda x: gather(inner(scatter(x, self._key_nodes, self.mask.num_keys)), self._query_nodes)

    def matmul(self, x: Tensor) -> Tensor:
        """Put keys on their nodes, multiply, and read the queries' nodes."""
        return self.product()(x)

    def rmatmul(self, x: Tensor) -> Tensor:
        """Put queries on their nodes, multiply, and read the keys' nodes."""
        return gather(self.mask.rmatmul(scatter(x, self._query_nodes, self.mask.num_queries)), self._key_nodes)

    def product_noise(self, x: Tensor) -> Tensor | None:
        """That of the whole mask, in the queries' rows where rows differ."""
        noise = self.mask.product_noise(scatter(x, self._key_nodes, self.mask.num_keys))
        return noise if noise is None or noise.shape[-2] == 1 else gather(noise, self._query_nodes)

    def dense_weights(self) -> Tensor:
        """The submatrix; a selection is made for one call, so nothing is kept."""
        return self.to_dense()

    def to_dense(self) -> Tensor:
        """The submatrix, [H, N_q, N_k]."""
        dense = self.mask.submatrix(self._query_nodes, self._key_nodes)
        return dense.expand(self.num_heads, -1, -1)

    def submatrix(self, query_nodes: Tensor | None, key_nodes: Tensor | None) -> Tensor:
        """Rows and columns of the rows and columns."""
        return self.mask.submatrix(_choose(self._query_nodes, query_nodes), _choose(self._key_nodes, key_nodes))

    def magnitude(self) -> SelectedMask:
        """The same places of the mask's magnitude."""
        inner = self.mask.magnitude()
        return self if inner is self.mask else SelectedMask(inner, self._query_nodes, self._key_nodes)

    def pattern(self) -> Pattern:
        """The pattern of the mask in these rows and columns."""
        return self._layout[0]

    def entries(self) -> Entries:
        """The entries of the mask in these rows and columns."""
        inner = self.mask.entries()
        pattern, entry = self._layout
        values = inner.values[entry]
        return Entries(pattern, values, values if inner.magnitudes is inner.values else inner.magnitudes[entry])

    @cached_property
    def _layout(self) -> tuple[Pattern, Tensor]:
        """The pattern, and which entries of the mask stand there."""
        whole, heads = self.mask.pattern(), self.num_heads
        rows = _per_head(self._query_nodes, self.mask.num_queries, heads, whole.columns.device)
        keys = _per_head(self._key_nodes, self.mask.num_keys, heads, whole.columns.device)
        counts = whole.row_ptr.diff()[rows]
        entry = segments.ranges(whole.row_ptr[rows], counts)
        # A node may hold several keys, or none.
        order = keys.argsort(stable=True)
        keys_ptr = segments.pointers(torch.bincount(keys, minlength=heads * self.mask.num_keys))
        node = whole.columns[entry]
        copies = keys_ptr.diff()[node]
        columns = order[segments.ranges(keys_ptr[node], copies)]
        entry = torch.repeat_interleave(entry, copies)
        row = torch.repeat_interleave(segments.index(segments.pointers(counts)), copies)
        sorting = (row * len(keys) + columns).argsort()
        row_ptr = segments.pointers(torch.bincount(row, minlength=len(rows)))
        return make_pattern(row_ptr, columns[sorting], len(keys)), entry[sorting]

    @property
    def num_pairs_bound(self) -> int | None:
        """The bound of the whole mask, which is computed first, times the copies of a node."""
        bound = self.mask.num_pairs_bound
        return None if bound is None else bound * self._copies

    @property
    def num_pairs_estimate(self) -> int | None:
        """The estimate for the whole mask, times the copies of a node."""
        estimate = self.mask.num_pairs_estimate
        return None if estimate is None else estimate * self._copies

    @property
    def num_inner_rows(self) -> int:
        """Those of the whole mask."""
        return max(self.num_queries, self.num_keys, self.mask.num_inner_rows)

    @property
    def refresh_cost(self) -> int:
        """That of the mask; never 0, since entries are put together anew."""
        return max(1, self.mask.refresh_cost)

    @property
    def product_cost(self) -> int:
        """The cost of the whole mask."""
        return self.mask.product_cost

    @property
    def key_groups(self) -> Tensor | None:
        """Which graph every key belongs to."""
        groups = self.mask.key_groups
        return groups if groups is None or self._key_nodes is None else groups[self._key_nodes.to(groups.device)]


def _choose(nodes: Tensor | None, places: Tensor | None) -> Tensor | None:
    return nodes if places is None else places if nodes is None else nodes[places.to(nodes.device)]


def _largest_count(nodes: Tensor | None) -> int:
    """How often a node appears at most."""
    if nodes is None or torch.compiler.is_compiling() or not len(nodes):
        return 1
    return int(torch.bincount(nodes).max())


def _per_head(nodes: Tensor | None, size: int, num_heads: int, device: torch.device) -> Tensor:
    chosen = torch.arange(size, device=device) if nodes is None else nodes.to(device)
    return (torch.arange(num_heads, device=device)[:, None] * size + chosen).flatten()
