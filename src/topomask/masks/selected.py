"""Rows and columns of operators."""

from __future__ import annotations

import torch
from torch import Tensor

from topomask.masks.entries import Entries, Shape, pattern_shapes
from topomask.masks.operator import Cost, Operator
from topomask.ops import segments
from topomask.ops.derived import derivation
from topomask.ops.registration import has_values
from topomask.ops.sparse_product import Pattern, make_pattern


class SelectedOperator(Operator):
    """The rows ``query_nodes`` [N_q] and columns ``key_nodes`` [N_k] of an operator, for cross-attention."""

    def __init__(self, whole: Operator, query_nodes: Tensor | None = None, key_nodes: Tensor | None = None) -> None:
        self._adopt(whole, *_sizes(whole, query_nodes, key_nodes))
        # A selection is made for one call.
        self._is_kept = False
        self._whole, self._query_nodes, self._key_nodes = whole, query_nodes, key_nodes
        if self.key_groups is not None and key_nodes is not None:
            self.key_groups = self.key_groups[key_nodes.to(self.key_groups.device)]

    def matmul(self, x: Tensor) -> Tensor:
        """Put keys on their nodes, multiply, and read the nodes of the queries."""
        return gather(self._whole.matmul(scatter(x, self._key_nodes, self._whole.num_keys)), self._query_nodes)

    def rmatmul(self, x: Tensor) -> Tensor:
        """Put queries on their nodes, multiply, and read the nodes of the keys."""
        return gather(self._whole.rmatmul(scatter(x, self._query_nodes, self._whole.num_queries)), self._key_nodes)

    def product_noise(self, x: Tensor) -> Tensor | None:
        """The noise of the whole operator, in the rows of the queries."""
        noise = self._whole.product_noise(scatter(x, self._key_nodes, self._whole.num_keys))
        return noise if noise is None or noise.shape[-2] == 1 else gather(noise, self._query_nodes)

    def submatrix(self, query_nodes: Tensor | None, key_nodes: Tensor | None) -> Tensor:
        """Rows and columns of the selection."""
        found = self._whole.submatrix(_choose(self._query_nodes, query_nodes), _choose(self._key_nodes, key_nodes))
        return found.expand(self.num_heads, -1, -1)

    def magnitude(self) -> SelectedOperator:
        """The same rows and columns of the operator's magnitude."""
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
        """The cost of the whole operator, times the copies of a node; entries are gathered in every call."""
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


def submatrix_by_products(operator: Operator, query_nodes: Tensor | None, key_nodes: Tensor | None) -> Tensor:
    """Return rows and columns of M, [H, n_q, n_k], from products with unit vectors on the smaller side."""
    num_queries, num_keys = _sizes(operator, query_nodes, key_nodes)
    dtype, device = operator.dtype, operator.device
    probe = torch.zeros(operator.num_heads, operator.num_keys, 1, dtype=dtype, device=device)
    noisy = operator.product_noise(probe) is not None
    # The noise of transposed products is known for square operators only, and the compiler does not support the
    # derivative of every product.
    can_transpose = not (noisy and operator.num_queries != operator.num_keys) and not torch.compiler.is_compiling()
    few_queries = num_queries < num_keys and can_transpose
    few, many = (query_nodes, key_nodes) if few_queries else (key_nodes, query_nodes)
    # Entries may be much smaller than the noise of a product in single precision.
    work = torch.float64 if noisy else dtype
    eye = torch.eye(num_queries if few_queries else num_keys, dtype=work, device=device)
    size = operator.num_queries if few_queries else operator.num_keys
    x = scatter(eye.expand(operator.num_heads, -1, -1), few, size)
    dense = gather(operator.rmatmul(x) if few_queries else operator.matmul(x), many)
    if noisy:
        noise = operator.product_noise(x)
        assert noise is not None
        # Entries within the noise become 0, so that a nonnegative operator has no negative entries here.
        noise = noise if noise.shape[-2] == 1 else gather(noise, many)
        dense = dense.masked_fill(dense.detach().abs() <= noise, 0.0)
    return (dense.mT if few_queries else dense).to(dtype)


def gather(x: Tensor, nodes: Tensor | None) -> Tensor:
    """Return the rows of nodes, or all rows for None."""
    return x if nodes is None else x.index_select(-2, nodes.to(x.device))


def scatter(x: Tensor, nodes: Tensor | None, size: int) -> Tensor:
    """Put rows on nodes, and add up those on the same node."""
    if nodes is None:
        return x
    return x.new_zeros(*x.shape[:-2], size, x.shape[-1]).index_add(-2, nodes.to(x.device), x)


def _sizes(operator: Operator, query_nodes: Tensor | None, key_nodes: Tensor | None) -> tuple[int, int]:
    num_queries = operator.num_queries if query_nodes is None else len(query_nodes)
    return num_queries, operator.num_keys if key_nodes is None else len(key_nodes)


def _choose(nodes: Tensor | None, places: Tensor | None) -> Tensor | None:
    return nodes if places is None else places if nodes is None else nodes[places.to(nodes.device)]


def _largest_count(nodes: Tensor | None) -> int:
    """The largest number of times that a node appears."""
    if nodes is None or not has_values(nodes) or not len(nodes):
        return 1
    return int(torch.bincount(nodes).max())


def _per_head(nodes: Tensor | None, size: int, num_heads: int, device: torch.device) -> Tensor:
    chosen = torch.arange(size, device=device) if nodes is None else nodes.to(device)
    return (torch.arange(num_heads, device=device)[:, None] * size + chosen).flatten()


def _shapes(tensors: list[Tensor], _: list[int]) -> list[Shape]:
    return [*pattern_shapes(tensors[0].shape[0], tensors[1].shape[0]), (None, torch.int64)]


@derivation(_shapes)
def _select(tensors: list[Tensor], _: list[int]) -> list[Tensor]:
    """Return the pattern of some rows and keys of a pattern, and the indices of its entries."""
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
