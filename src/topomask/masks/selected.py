"""Some rows and columns of an operator."""

from __future__ import annotations

import torch
from torch import Tensor

from topomask.masks.entries import Entries
from topomask.masks.operator import Cost, Operator
from topomask.masks.submatrix import gather, scatter
from topomask.ops import segments
from topomask.ops.derived import derivation
from topomask.ops.registration import has_values
from topomask.ops.sparse_product import Pattern, make_pattern


class SelectedOperator(Operator):
    """The rows ``query_nodes`` and columns ``key_nodes`` of an operator, for cross-attention.

    Args:
        whole: The operator.
        query_nodes: Node of every query, [N_q]. Default: all nodes in order.
        key_nodes: Node of every key, [N_k]. Default: all nodes in order.
    """

    def __init__(self, whole: Operator, query_nodes: Tensor | None = None, key_nodes: Tensor | None = None) -> None:
        num_queries = whole.num_queries if query_nodes is None else len(query_nodes)
        num_keys = whole.num_keys if key_nodes is None else len(key_nodes)
        self._adopt(whole, num_queries, num_keys)
        # A selection is made for one call.
        self._is_kept = False
        self._whole, self._query_nodes, self._key_nodes = whole, query_nodes, key_nodes
        if self.key_groups is not None and key_nodes is not None:
            self.key_groups = self.key_groups[key_nodes.to(self.key_groups.device)]

    def matmul(self, x: Tensor) -> Tensor:
        """Put keys on their nodes, multiply, and read the queries' nodes."""
        return gather(self._whole.matmul(scatter(x, self._key_nodes, self._whole.num_keys)), self._query_nodes)

    def rmatmul(self, x: Tensor) -> Tensor:
        """Put queries on their nodes, multiply, and read the keys' nodes."""
        return gather(self._whole.rmatmul(scatter(x, self._query_nodes, self._whole.num_queries)), self._key_nodes)

    def product_noise(self, x: Tensor) -> Tensor | None:
        """That of the whole, in the queries' rows where rows differ."""
        noise = self._whole.product_noise(scatter(x, self._key_nodes, self._whole.num_keys))
        return noise if noise is None or noise.shape[-2] == 1 else gather(noise, self._query_nodes)

    def submatrix(self, query_nodes: Tensor | None, key_nodes: Tensor | None) -> Tensor:
        """Rows and columns of the rows and columns."""
        found = self._whole.submatrix(_choose(self._query_nodes, query_nodes), _choose(self._key_nodes, key_nodes))
        return found.expand(self.num_heads, -1, -1)

    def magnitude(self) -> SelectedOperator:
        """The same places of the operator's magnitude."""
        inner = self._whole.magnitude()
        return self if inner is self._whole else SelectedOperator(inner, self._query_nodes, self._key_nodes)

    def entries(self) -> Entries:
        """The entries of the operator in these rows and columns."""
        whole, values, magnitudes = self._whole.entries()
        heads = self.num_heads // len(values)
        rows = _per_head(self._query_nodes, self._whole.num_queries, heads, whole.columns.device)
        keys = _per_head(self._key_nodes, self._whole.num_keys, heads, whole.columns.device)
        *pattern, entry = _select([rows, keys, *whole], [])
        found = values[:, entry]
        return Entries(Pattern(*pattern), found, found if magnitudes is values else magnitudes[:, entry])

    def cost(self) -> Cost:
        """That of the whole, times the copies of a node; entries are put together anew."""
        cost = self._whole.cost()
        copies = _largest_count(self._query_nodes) * _largest_count(self._key_nodes)
        return cost._replace(
            refresh=max(1, cost.refresh),
            dense=cost.product * min(self.num_queries, self.num_keys),
            pairs=None if cost.pairs is None else cost.pairs * copies,
            max_pairs=None if cost.max_pairs is None else cost.max_pairs * copies,
            tiles=None,
            rank=None,
            inner_rows=max(cost.inner_rows, self._whole.num_queries, self._whole.num_keys),
        )


def _choose(nodes: Tensor | None, places: Tensor | None) -> Tensor | None:
    return nodes if places is None else places if nodes is None else nodes[places.to(nodes.device)]


def _largest_count(nodes: Tensor | None) -> int:
    """How often a node appears at most."""
    if nodes is None or not has_values(nodes) or not len(nodes):
        return 1
    return int(torch.bincount(nodes).max())


def _per_head(nodes: Tensor | None, size: int, num_heads: int, device: torch.device) -> Tensor:
    chosen = torch.arange(size, device=device) if nodes is None else nodes.to(device)
    return (torch.arange(num_heads, device=device)[:, None] * size + chosen).flatten()


def _shapes(tensors: list[Tensor], _: list[int]) -> list[tuple[int | None, torch.dtype]]:
    rows, keys = tensors[0].shape[0], tensors[1].shape[0]
    kind = segments.index_type(max(rows, keys) + 1)
    unknown = [(None, kind), (None, torch.int32), (None, torch.int64)]
    return [(rows + 1, torch.int64), (None, kind), (keys + 1, torch.int64), *unknown]


@derivation(_shapes)
def _select(tensors: list[Tensor], _: list[int]) -> list[Tensor]:
    """The pattern of some rows and keys of a pattern, and which entries stand there."""
    rows, keys = tensors[:2]
    whole = Pattern(*tensors[2:])
    num_columns = len(whole.column_ptr) - 1
    counts = whole.row_ptr.diff()[rows]
    entry = segments.ranges(whole.row_ptr[rows], counts)
    # A node may hold several keys, or none.
    order = keys.argsort(stable=True)
    keys_ptr = segments.pointers(torch.bincount(keys, minlength=num_columns))
    node = whole.columns[entry]
    copies = keys_ptr.diff()[node]
    columns = order[segments.ranges(keys_ptr[node], copies)]
    entry = torch.repeat_interleave(entry, copies)
    row = torch.repeat_interleave(segments.index(segments.pointers(counts)), copies)
    sorting = (row * len(keys) + columns).argsort()
    row_ptr = segments.pointers(torch.bincount(row, minlength=len(rows)))
    return [*make_pattern(row_ptr, columns[sorting], len(keys)), entry[sorting]]
