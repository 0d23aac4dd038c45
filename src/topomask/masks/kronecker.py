"""Kronecker products of masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from topomask.graph import Graph
from topomask.masks.base import Entries, Mask, Normalizer
from topomask.masks.composition import (
    MAX_FULL_ENTRIES,
    check_masks,
    common_heads,
    common_normalizer,
    full_entries,
    full_pattern,
)
from topomask.ops import segments
from topomask.ops.pair_attention import TileWork
from topomask.ops.sparse_product import Pattern, make_pattern


class _Layout(NamedTuple):
    """The pattern, and which entries of the factors are multiplied at every place."""

    pattern: Pattern
    first: Tensor
    second: Tensor
    factors: tuple[Pattern, Pattern]


class KroneckerMask(Mask):
    r"""The Kronecker product of two masks, for tokens on a product of graphs, such as time x space.

    .. math:: M = M_1 \otimes M_2, \qquad M_{(i_1, i_2), (j_1, j_2)} = (M_1)_{i_1 j_1} (M_2)_{i_2 j_2}

    Token :math:`(i_1, i_2)` has the number :math:`i_1 N_2 + i_2`, as in ``tm.grid_graph(N_1, N_2)`` and in
    ``x.flatten()`` of frames. A product applies each factor along its own axis: the first once for every node of the
    second, and the reverse. More factors are nested: ``KroneckerMask(time, KroneckerMask(height, width))``. Where both
    factors are sparse, so is the product; also where one is, and the other is small, such as a mask on a few frames.

    A factor on a batch of graphs makes a batch: token :math:`(i_1, i_2)` belongs to the pair of its nodes' graphs.

    Args:
        first: The mask on the first, slow axis.
        second: The mask on the second, fast axis. Either may have one head, which serves every head of the other.

    Example:
        >>> import torch, topomask as tm
        >>> time, space = tm.PowerSeriesMask(tm.path_graph(4), tm.series.heat(6)), tm.WalkMask(tm.grid_graph(8, 8))
        >>> mask = tm.KroneckerMask(time, space)
        >>> (mask @ torch.randn(1, 4 * 64, 16)).shape
        torch.Size([1, 256, 16])
    """

    def __init__(self, first: Mask, second: Mask) -> None:
        super().__init__()
        check_masks([first, second], "first and second")
        self.first, self.second = first, second
        self.num_heads = common_heads([first, second], "first and second")
        self.num_queries = first.num_queries * second.num_queries
        self.num_keys = first.num_keys * second.num_keys
        self.num_graphs = first.num_graphs * second.num_graphs
        self._cached: tuple[str, _Layout] | None = None

    def _costs(self) -> tuple[int, int]:
        """Cost of a product for one column, where the first or the second factor is applied first."""
        first, second = self.first, self.second
        a = first.product_cost * (self.num_heads // first.num_heads)
        b = second.product_cost * (self.num_heads // second.num_heads)
        return (
            second.num_keys * a + first.num_queries * b,
            first.num_keys * b + second.num_queries * a,
        )

    def _starts_with_first(self) -> bool:
        """Which factor is better applied first: they differ where masks are not square."""
        costs = self._costs()
        return costs[0] < costs[1]

    def product(self) -> Callable[[Tensor], Tensor]:
        """Multiplication by M with the products of the factors computed once."""
        first, second = self.first.product(), self.second.product()
        starts, split = self._starts_with_first(), self.second.num_keys
        return lambda x: _multiply(x, first, second, split, starts)

    def matmul(self, x: Tensor) -> Tensor:
        """Apply each factor along its own axis."""
        return self.product()(x)

    def rmatmul(self, x: Tensor) -> Tensor:
        """Apply the transpose of each factor along its own axis."""
        # In the reverse order, which is the cheaper one for the transpose.
        starts, split = not self._starts_with_first(), self.second.num_queries
        return _multiply(x, self.first.rmatmul, self.second.rmatmul, split, starts)

    def product_noise(self, x: Tensor) -> Tensor | None:
        r"""What the factor that comes second makes of the error of the one before it, and its own error.

        Let A be applied before B, :math:`\hat z = A x + e` and :math:`\hat y = B \hat z + e'`, where the factors bound
        :math:`|e| \le n_A(x)` and :math:`|e'| \le n_B(\hat z)`. Then :math:`|\hat y - (A \otimes B) x| \le |B|\,n_A(x)
        + n_B(\hat z)`, entry by entry. The bound is the largest of every column, with ``B.magnitude()`` for
        :math:`|B|`.
        """
        with torch.no_grad():
            return self._product_noise(x)

    def _product_noise(self, x: Tensor) -> Tensor | None:
        starts = self._starts_with_first()
        before, after = (self.first, self.second) if starts else (self.second, self.first)
        fine = x.to(torch.promote_types(x.dtype, torch.float32)).unflatten(-2, (-1, self.second.num_keys))
        columns = fine if starts else fine.transpose(-2, -3)  # [..., H, N_before, N_after, C]
        noise = before.product_noise(columns.flatten(-2))
        total: Tensor | None = None
        if noise is not None:
            spread = noise.amax(dim=-2).unflatten(-1, columns.shape[-2:])  # [..., H, N_after, C]
            total = after.magnitude().matmul(spread).amax(dim=-2, keepdim=True)
        done = _along(before.matmul, columns)  # [..., H, M_before, N_after, C]
        noise = after.product_noise(done.transpose(-2, -3).flatten(-2))
        if noise is not None:
            own = noise.amax(dim=-2, keepdim=True).unflatten(-1, (done.shape[-3], -1)).amax(dim=-2)
            total = own if total is None else total + own
        return total

    def to_dense(self) -> Tensor:
        """M, [H, N_q, N_k]."""
        first, second = self.first.to_dense(), self.second.to_dense()
        product = first[:, :, None, :, None] * second[:, None, :, None, :]
        return product.reshape(self.num_heads, self.num_queries, self.num_keys)

    def submatrix(self, query_nodes: Tensor | None, key_nodes: Tensor | None) -> Tensor:
        """Products of the entries of the factors."""
        queries = torch.arange(self.num_queries) if query_nodes is None else query_nodes
        keys = torch.arange(self.num_keys) if key_nodes is None else key_nodes
        inner = self.second.num_queries, self.second.num_keys
        first = self.first.submatrix(queries // inner[0], keys // inner[1])
        return first * self.second.submatrix(queries % inner[0], keys % inner[1])

    def magnitude(self) -> KroneckerMask:
        """The Kronecker product of the factors' magnitudes."""
        first, second = self.first.magnitude(), self.second.magnitude()
        if first is self.first and second is self.second:
            return self
        view = self._magnitude_view()
        view._modules |= {"first": first, "second": second}
        return view

    def pattern(self) -> Pattern:
        """The Kronecker product of the patterns."""
        if self.num_pairs_bound is None:
            return super().pattern()
        return _constant_layout(self, self.structure).pattern

    def entries(self) -> Entries:
        """Products of the factors' entries; kept while nothing changes and no gradient is asked for."""
        if self.num_pairs_bound is None:
            return super().entries()
        return self._keep("entries", self._entries)

    def _entries(self) -> Entries:
        pattern, *places, patterns = _constant_layout(self, self.structure)
        first, second = (
            factor.entries() if factor.num_pairs_bound is not None else full_entries(factor, own)
            for factor, own in zip((self.first, self.second), patterns, strict=True)
        )
        values = first.values.index_select(0, places[0]) * second.values.index_select(0, places[1])
        if first.magnitudes is first.values and second.magnitudes is second.values:
            return Entries(pattern, values, values)
        sizes = first.magnitudes.index_select(0, places[0]) * second.magnitudes.index_select(0, places[1])
        return Entries(pattern, values, sizes)

    def _patterns(self) -> tuple[Pattern, Pattern]:
        """Those of the factors, one of which may be full."""
        if self.first.num_pairs_bound is None:
            second = self.second.pattern()
            return full_pattern(self.first, second.row_ptr.device), second
        first = self.first.pattern()
        sparse = self.second.num_pairs_bound is not None
        return first, self.second.pattern() if sparse else full_pattern(self.second, first.row_ptr.device)

    def _layout(self) -> _Layout:
        """Row (i_1, i_2) has the columns (j_1, j_2) for all j_1 of row i_1 and all j_2 of row i_2."""
        first, second = self._patterns()
        head = torch.arange(self.num_heads, device=first.row_ptr.device)[:, None, None]
        row_1 = torch.arange(self.first.num_queries, device=head.device)[:, None]
        row_2 = torch.arange(self.second.num_queries, device=head.device)
        # A factor of one head has the same rows for every head.
        row_1 = row_1 + head * (self.first.num_queries if self.first.num_heads > 1 else 0)
        row_2 = row_2 + head * (self.second.num_queries if self.second.num_heads > 1 else 0)
        row_1, row_2, head = (x.flatten() for x in torch.broadcast_tensors(row_1, row_2, head))
        width = second.row_ptr.diff()[row_2]
        counts = first.row_ptr.diff()[row_1] * width
        row_ptr = segments.pointers(counts)
        row = segments.index(row_ptr)
        place = segments.ranges(torch.zeros_like(counts), counts)
        entry_1 = first.row_ptr[row_1[row]] + place // width[row]
        entry_2 = second.row_ptr[row_2[row]] + place % width[row]
        column_1 = first.columns[entry_1] % max(1, self.first.num_keys)
        column_2 = second.columns[entry_2] % max(1, self.second.num_keys)
        columns = (head[row] * self.first.num_keys + column_1) * self.second.num_keys + column_2
        pattern = make_pattern(row_ptr, columns, self.num_heads * self.num_keys)
        return _Layout(
            pattern,
            entry_1.to(segments.index_type(len(first.columns))),
            entry_2.to(segments.index_type(len(second.columns))),
            (first, second),
        )

    @property
    def structure(self) -> str:
        """A name of the pattern."""
        return f"({self.first.structure}) x ({self.second.structure})"

    @property
    def default_normalizer(self) -> Normalizer:  # type: ignore[override]
        """The plain sum, if any part asks for it."""
        return common_normalizer([self.first, self.second])

    @property
    def key_groups(self) -> Tensor | None:
        """Which pair of graphs every key belongs to."""
        first, second = self.first.key_groups, self.second.key_groups
        if first is None and second is None:
            return None
        groups = torch.zeros(self.first.num_keys, self.second.num_keys, dtype=torch.int64)
        if first is not None:
            groups = groups.to(first.device) + first[:, None] * self.second.num_graphs
        if second is not None:
            groups = groups.to(second.device) + second
        return groups.flatten()

    @property
    def num_pairs_bound(self) -> int | None:
        """The product of the factors' bounds, with what one head has at most where heads differ."""
        first, second = self.first, self.second
        a, b = self._counts(first.num_pairs_bound, second.num_pairs_bound)
        if a is None or b is None:
            return None
        # Bounds are over all heads, and only entries of the same head meet.
        return min(
            a * min(b, second.num_queries * second.num_keys) if first.num_heads > 1 else a * b,
            b * min(a, first.num_queries * first.num_keys) if second.num_heads > 1 else a * b,
        )

    @property
    def num_pairs_estimate(self) -> int | None:
        """The product of the factors' estimates per head, over all heads."""
        a, b = self._counts(self.first.num_pairs_estimate, self.second.num_pairs_estimate)
        if a is None or b is None:
            return None
        return self.num_heads * a * b // (self.first.num_heads * self.second.num_heads)

    def _counts(self, first: int | None, second: int | None) -> tuple[int | None, int | None]:
        """Numbers of entries: where one factor alone is sparse and the other is small, the other is full."""
        if first is None and second is not None:
            return _full_count(self.first), second
        if second is None and first is not None:
            return first, _full_count(self.second)
        return first, second

    @property
    def tile_work(self) -> TileWork | None:
        """That of the second factor for every entry of the first: tiles join tokens that differ in the second."""
        work = self.second.tile_work
        entries = self._counts(self.first.num_pairs_estimate, self.second.num_pairs_estimate)[0]
        if work is None or entries is None:
            return None
        times = entries * self.num_heads
        share = self.first.num_heads * self.second.num_heads
        return TileWork(work.keys * times // share, work.alone * times // share)

    @property
    def num_inner_rows(self) -> int:
        """Rows of the largest intermediate result: of a factor, for every node of the other."""
        first, second = self.first, self.second
        if self._starts_with_first():
            return max(first.num_inner_rows * second.num_keys, second.num_inner_rows * first.num_queries)
        return max(second.num_inner_rows * first.num_keys, first.num_inner_rows * second.num_queries)

    @property
    def refresh_cost(self) -> int:
        """That of the factors, and one multiplication per entry; 0 where entries are kept."""
        if self._is_frozen():
            return 0
        return max(1, self.first.refresh_cost + self.second.refresh_cost + (self.num_pairs_estimate or 0))

    @property
    def dense_cost(self) -> int:
        """That of the factors, and one multiplication per entry."""
        return self.first.dense_cost + self.second.dense_cost + self.num_heads * self.num_queries * self.num_keys

    @property
    def product_cost(self) -> int:
        """One factor for every node of the other, and the reverse."""
        return min(self._costs())

    def on(self, graph: Graph, features: Any = None) -> Self:
        """Refused: one graph says nothing about the two factors."""
        raise ValueError(
            f"A KroneckerMask lives on a product of two graphs, so it cannot be moved to {graph}"
            f"{'' if features is None else ' with features'}. Move its factors: "
            "KroneckerMask(mask.first.on(first_graph), mask.second.on(second_graph)) has the same parameters."
        )

    def _state(self) -> list[Tensor]:
        """What the factors depend on."""
        return self.first._state() + self.second._state()


def _full_count(mask: Mask) -> int | None:
    per_head = mask.num_queries * mask.num_keys
    return mask.num_heads * per_head if per_head <= MAX_FULL_ENTRIES else None


def _along(multiply: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A product along the first of the two axes of nodes of x [..., H, N, N', C], the other joined with columns."""
    return multiply(x.flatten(-2)).unflatten(-1, x.shape[-2:])


def _multiply(
    x: Tensor,
    first: Callable[[Tensor], Tensor],
    second: Callable[[Tensor], Tensor],
    split: int,
    starts_with_first: bool,
) -> Tensor:
    """Apply both factors to x [..., H, N_1 * N_2, C], in at least float32; ``split`` is N_2."""
    # [..., H, N_1, N_2, C]
    out = x.to(torch.promote_types(x.dtype, torch.float32)).unflatten(-2, (-1, split))
    if starts_with_first:
        out = _along(first, out)
    out = _along(second, out.transpose(-2, -3)).transpose(-2, -3)
    if not starts_with_first:
        out = _along(first, out)
    return out.flatten(-3, -2).to(x.dtype)


@torch.compiler.assume_constant_result
def _constant_layout(mask: KroneckerMask, structure: str) -> _Layout:
    """The layout, computed once for every structure of the factors."""
    if mask._cached is None or mask._cached[0] != structure:
        with torch.inference_mode(False):
            mask._cached = structure, mask._layout()
    return mask._cached[1]
