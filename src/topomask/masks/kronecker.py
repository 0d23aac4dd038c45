"""Kronecker products of masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from topomask.graph import Graph
from topomask.masks.composition import (
    MAX_FULL_ENTRIES,
    check_masks,
    common_heads,
    common_normalizer,
    full_entries,
    keep_joined,
    sample_walks,
)
from topomask.masks.entries import Entries, Shape, pattern_shapes
from topomask.masks.mask import Mask
from topomask.masks.operator import Cost, Operator, once
from topomask.ops import segments
from topomask.ops.derived import derivation
from topomask.ops.pair_attention import TileWork
from topomask.ops.sparse_product import Pattern, make_pattern

# A product, or a bound on its error if it has one.
T = TypeVar("T", Tensor, Tensor | None)


class KroneckerMask(Mask):
    r"""The Kronecker product of two masks, for tokens on a product of graphs, such as time x space.

    .. math:: M = M_1 \otimes M_2, \qquad M_{(i_1, i_2), (j_1, j_2)} = (M_1)_{i_1 j_1} (M_2)_{i_2 j_2}

    Token :math:`(i_1, i_2)` has the number :math:`i_1 N_2 + i_2`, as in ``tm.grid_graph(N_1, N_2)`` and in
    ``x.flatten()`` of frames. A product applies each factor along its own axis: the first once for every node of the
    second, and vice versa. Nest masks for more factors: ``KroneckerMask(time, KroneckerMask(height, width))``. The mask
    is sparse if both factors are, or if one is and the other is small, such as a mask on a few frames.

    If a factor is on a batch of graphs, so is the mask: token :math:`(i_1, i_2)` belongs to the pair of its graphs.

    Args:
        first: The mask on the first, slow axis.
        second: The mask on the second, fast axis. A factor with one head is used for every head of the other.

    Example:
        >>> import torch, topomask as tm
        >>> time, space = tm.PowerSeriesMask(tm.path_graph(4), tm.series.heat(6)), tm.WalkMask(tm.grid_graph(8, 8))
        >>> mask = tm.KroneckerMask(time, space)
        >>> (mask @ torch.randn(1, 4 * 64, 16)).shape
        torch.Size([1, 256, 16])
    """

    def __init__(self, first: Mask, second: Mask) -> None:
        check_masks({"first": first, "second": second})
        super().__init__(num_heads=common_heads([first, second], "first and second"))
        self.first, self.second = first, second
        self.default_normalizer = common_normalizer([first, second])
        self.takes_graph = first.takes_graph or second.takes_graph

    @property
    def graph(self) -> Any:
        """The graphs of the factors, ``(first, second)``; None if a factor still needs one."""
        factors = self.first, self.second
        if not self.takes_graph or any(factor.takes_graph and factor.graph is None for factor in factors):
            return None
        return self.first.graph, self.second.graph

    @graph.setter
    def graph(self, graph: Any) -> None:
        for factor, own in zip((self.first, self.second), _two(graph, "graph"), strict=True):
            if factor.takes_graph:
                factor.graph = own

    def sample(self, graph: tuple[Graph, Graph]) -> tuple[Any, Any]:
        """Return walks of the factors on two graphs, for :meth:`on`; None for a factor that does not use walks."""
        first, second = _two(graph, "graph")
        return sample_walks(self.first, first), sample_walks(self.second, second)

    def on(self, graph: Any = None, walks: Any = None) -> Operator:
        """Return the operator on two graphs, with the current values of the parameters.

        Args:
            graph: Two graphs, ``(first, second)``; None for a factor's own graph. Default: both their own.
            walks: What :meth:`sample` returned for them.
        """
        graphs, given = _two(graph, "graph"), _two(walks, "walks")
        first, second = self.first.on(graphs[0], given[0]), self.second.on(graphs[1], given[1])
        return keep_joined(self, [first, second], lambda: KroneckerOperator(first, second, self.default_normalizer))


def _two(given: Any, name: str) -> tuple[Any, Any]:
    if given is None:
        return None, None
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        found = f"{len(given)} items" if isinstance(given, (tuple, list)) else f"a {type(given).__name__}"
        raise ValueError(
            f"A KroneckerMask is on a product of two graphs, so `{name}` must be a pair, (first, second), but is "
            f"{found}. Call mask.on((first_graph, second_graph)), with None to keep a factor's own graph."
        )
    return given[0], given[1]


class KroneckerOperator(Operator):
    """The Kronecker product of two operators, the first on the slow axis."""

    def __init__(self, first: Operator, second: Operator, default_normalizer: Any = "absolute") -> None:
        num_queries, num_keys = first.num_queries * second.num_queries, first.num_keys * second.num_keys
        self._adopt(first, num_queries, num_keys)
        self.name, self.default_normalizer = "KroneckerMask", default_normalizer
        self.num_heads = max(first.num_heads, second.num_heads)
        self.num_graphs = first.num_graphs * second.num_graphs
        self.dtype = torch.promote_types(first.dtype, second.dtype)
        self.is_all_ones = first.is_all_ones and second.is_all_ones
        self._is_kept, self._watched = first._is_kept and second._is_kept, first._watched + second._watched
        self._needs_float64 = first._needs_float64 or second._needs_float64
        self._first, self._second = first, second
        if first.key_groups is not None or second.key_groups is not None:
            slow, fast = (
                torch.zeros(part.num_keys, dtype=torch.int64, device=self.device)
                if part.key_groups is None
                else part.key_groups
                for part in (first, second)
            )
            self.key_groups = (slow[:, None] * second.num_graphs + fast).flatten()
        self._starts_with_first = self._products()[0] < self._products()[1]

    def _products(self) -> tuple[int, int]:
        """Cost of a product with one column if the first, or the second, factor is applied first."""
        first, second = self._first, self._second
        a = first.cost().product * (self.num_heads // first.num_heads)
        b = second.cost().product * (self.num_heads // second.num_heads)
        return second.num_keys * a + first.num_queries * b, first.num_keys * b + second.num_queries * a

    def matmul(self, x: Tensor) -> Tensor:
        """Apply each factor along its own axis."""
        return self._multiply(x, transpose=False)

    def rmatmul(self, x: Tensor) -> Tensor:
        """Apply the transpose of each factor along its own axis."""
        return self._multiply(x, transpose=True)

    def _multiply(self, x: Tensor, transpose: bool) -> Tensor:
        first, second = (part.rmatmul if transpose else part.matmul for part in (self._first, self._second))
        split = self._second.num_queries if transpose else self._second.num_keys
        # The reverse order is cheaper for the transpose.
        starts_with_first = self._starts_with_first != transpose
        out = x.to(torch.promote_types(x.dtype, torch.float32)).unflatten(-2, (-1, split))  # [..., H, N_1, N_2, C]
        if starts_with_first:
            out = _along(first, out)
        out = _along(second, out.transpose(-2, -3)).transpose(-2, -3)
        if not starts_with_first:
            out = _along(first, out)
        return out.flatten(-3, -2).to(x.dtype)

    def product_noise(self, x: Tensor) -> Tensor | None:
        r"""The error of the factor applied first, propagated through the other, plus the error of the other.

        Let A be applied before B, :math:`\hat z = A x + e` and :math:`\hat y = B \hat z + e'`, where the factors bound
        :math:`|e| \le n_A(x)` and :math:`|e'| \le n_B(\hat z)`. Then :math:`|\hat y - (A \otimes B) x| \le |B|\,n_A(x)
        + n_B(\hat z)`, entry by entry, with ``B.magnitude()`` for :math:`|B|`, whose product has an error of its own.
        """
        with torch.no_grad():
            starts = self._starts_with_first
            before, after = (self._first, self._second) if starts else (self._second, self._first)
            fine = x.to(torch.promote_types(x.dtype, torch.float32)).unflatten(-2, (-1, self._second.num_keys))
            columns = fine if starts else fine.transpose(-2, -3)  # [..., H, N_before, N_after, C]
            bounds = [_along(after.product_noise, _along(before.matmul, columns).transpose(-2, -3))]
            noise = _along(before.product_noise, columns)
            if noise is not None:
                noise, spread = noise.transpose(-2, -3), after.magnitude()  # [..., H, N_after, M_before or 1, C]
                bounds += [_along(spread.matmul, noise).clamp_min(0.0), _along(spread.product_noise, noise)]
            found = [bound for bound in bounds if bound is not None]
            if not found:
                return None
            total = sum(found[1:], found[0]).expand(*x.shape[:-2], after.num_queries, before.num_queries, x.shape[-1])
            return (total.transpose(-2, -3) if starts else total).flatten(-3, -2)

    def to_dense(self) -> Tensor:
        """M, [H, N_q, N_k]."""
        first, second = self._first._dense_weights(), self._second._dense_weights()
        product = first[:, :, None, :, None] * second[:, None, :, None, :]
        return product.reshape(self.num_heads, self.num_queries, self.num_keys)

    def submatrix(self, query_nodes: Tensor | None, key_nodes: Tensor | None) -> Tensor:
        """Products of the entries of the factors."""
        queries = torch.arange(self.num_queries) if query_nodes is None else query_nodes
        keys = torch.arange(self.num_keys) if key_nodes is None else key_nodes
        inner = self._second.num_queries, self._second.num_keys
        first = self._first.submatrix(queries // inner[0], keys // inner[1])
        return first * self._second.submatrix(queries % inner[0], keys % inner[1])

    def magnitude(self) -> KroneckerOperator:
        """The Kronecker product of the factors' magnitudes."""
        first, second = self._first.magnitude(), self._second.magnitude()
        if first is self._first and second is self._second:
            return self
        return self._once("magnitude", lambda: KroneckerOperator(first, second, self.default_normalizer))

    @once
    def entries(self) -> Entries:
        """Products of the factors' entries."""
        pairs = [operator.cost().pairs for operator in (self._first, self._second)]
        if pairs[0] is None and pairs[1] is None:
            return super().entries()
        first, second = (
            full_entries(operator) if count is None else operator.entries()
            for operator, count in zip((self._first, self._second), pairs, strict=True)
        )
        # Whether a factor has one pattern per head.
        own = [
            int(len(entries.values) < operator.num_heads)
            for entries, operator in ((first, self._first), (second, self._second))
        ]
        heads = self.num_heads if any(own) else 1
        sizes = [self._first.num_queries, self._first.num_keys, self._second.num_queries, self._second.num_keys]
        *pattern, place_1, place_2 = _kronecker([*first.pattern, *second.pattern], [heads, *own, *sizes])

        def multiply(left: Tensor, right: Tensor) -> Tensor:
            """Multiply values [V, P] of the factors at the entries of the pattern."""
            if heads > 1:
                left, right = (
                    x if is_own else x.expand(heads, -1).reshape(1, -1)
                    for x, is_own in zip((left, right), own, strict=True)
                )
            product = left.index_select(1, place_1) * right.index_select(1, place_2)
            return product.expand(self.num_heads, -1) if heads == 1 else product

        values = multiply(first.values, second.values)
        if first.magnitudes is first.values and second.magnitudes is second.values:
            return Entries(Pattern(*pattern), values, values)
        return Entries(Pattern(*pattern), values, multiply(first.magnitudes, second.magnitudes))

    def cost(self) -> Cost:
        """Each factor once for every node of the other; products of the factors' entries."""
        first, second = self._first, self._second
        costs = first.cost(), second.cost()
        pairs = self._counts(costs[0].pairs, costs[1].pairs)
        bounds = self._counts(costs[0].max_pairs, costs[1].max_pairs)
        share = first.num_heads * second.num_heads
        count = None if pairs is None else self.num_heads * pairs[0] * pairs[1] // share
        tiles = costs[1].tiles
        if tiles is not None:
            # Tiles join tokens that differ in the second factor, for every entry of the first.
            tiles = None if pairs is None else TileWork(*(x * pairs[0] * self.num_heads // share for x in tiles))
        inner = costs[0].inner_rows or first.num_queries, costs[1].inner_rows or second.num_queries
        starts = self._starts_with_first
        of_first = inner[0] * (second.num_keys if starts else second.num_queries)
        of_second = inner[1] * (first.num_queries if starts else first.num_keys)
        size = self.num_heads * self.num_queries * self.num_keys
        return Cost(
            product=min(self._products()),
            dense=costs[0].dense + costs[1].dense + size,
            refresh=0 if self._is_kept else max(1, costs[0].refresh + costs[1].refresh + (count or 0)),
            pairs=count,
            max_pairs=None if bounds is None else self._bound(*bounds),
            tiles=tiles,
            passes=costs[0].passes + costs[1].passes,
            inner_rows=max(of_first, of_second),
        )

    def _bound(self, first: int, second: int) -> int:
        """Upper bound on the number of entries, from bounds over all heads: only entries of the same head meet."""
        of_first = self._first.num_queries * self._first.num_keys
        of_second = self._second.num_queries * self._second.num_keys
        return min(
            first * min(second, of_second) if self._first.num_heads > 1 else first * second,
            second * min(first, of_first) if self._second.num_heads > 1 else first * second,
        )

    def _counts(self, first: int | None, second: int | None) -> tuple[int, int] | None:
        """Numbers of entries of the factors; if only one is sparse and the other is small, the other is full."""
        if first is None and second is not None:
            first = _full_count(self._first)
        elif second is None and first is not None:
            second = _full_count(self._second)
        return None if first is None or second is None else (first, second)


def _full_count(operator: Operator) -> int | None:
    per_head = operator.num_queries * operator.num_keys
    return operator.num_heads * per_head if per_head <= MAX_FULL_ENTRIES else None


def _along(multiply: Callable[[Tensor], T], x: Tensor) -> T:
    """Multiply along the first axis of nodes of x [..., H, N, N', C], with the second one joined with the columns."""
    found = multiply(x.flatten(-2))
    return found if found is None else found.unflatten(-1, x.shape[-2:])


def _shapes(_: list[Tensor], numbers: list[int]) -> list[Shape]:
    heads, rows_1, columns_1, rows_2, columns_2 = numbers[0], *numbers[3:]
    pattern = pattern_shapes(heads * rows_1 * rows_2, heads * columns_1 * columns_2)
    return [*pattern, (None, torch.int64), (None, torch.int64)]


@derivation(_shapes)
def _kronecker(tensors: list[Tensor], numbers: list[int]) -> list[Tensor]:
    """Return the Kronecker product of two patterns, and the indices of the two entries behind each of its entries.

    Row (i_1, i_2) has the columns (j_1, j_2) for all j_1 of row i_1 and all j_2 of row i_2. If a factor has one pattern
    for all heads, its entries appear once per head.
    """
    first, second = Pattern(*tensors[:5]), Pattern(*tensors[5:])
    heads, own_1, own_2, rows_1, columns_1, rows_2, columns_2 = numbers
    head = torch.arange(heads, device=first.row_ptr.device)[:, None, None]
    row_1 = torch.arange(rows_1, device=head.device)[:, None] + head * (rows_1 * own_1)
    row_2 = torch.arange(rows_2, device=head.device) + head * (rows_2 * own_2)
    row_1, row_2, head = (x.flatten() for x in torch.broadcast_tensors(row_1, row_2, head))
    width = second.row_ptr.diff()[row_2]
    counts = first.row_ptr.diff()[row_1] * width
    row_ptr = segments.pointers(counts)
    row = segments.index(row_ptr)
    place = segments.ranges(torch.zeros_like(counts), counts)
    entry_1 = first.row_ptr[row_1[row]] + place // width[row]
    entry_2 = second.row_ptr[row_2[row]] + place % width[row]
    column_1 = first.columns[entry_1] % max(1, columns_1)
    column_2 = second.columns[entry_2] % max(1, columns_2)
    columns = (head[row] * columns_1 + column_1) * columns_2 + column_2
    entry_1 = entry_1 if own_1 else entry_1 + head[row] * len(first.columns)
    entry_2 = entry_2 if own_2 else entry_2 + head[row] * len(second.columns)
    return [*make_pattern(row_ptr, columns, heads * columns_1 * columns_2), entry_1, entry_2]
