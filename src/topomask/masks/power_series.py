"""Exact power series of the adjacency matrix."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from topomask.graph import Graph, Normalization
from topomask.graph.input import check_integer
from topomask.graph.records import Recipe, Record, SparseMatrix
from topomask.masks.graph_blocks import BlockOperator, BlocksRecipe, GraphBlocks, gather_blocks
from topomask.masks.mask import GraphMask
from topomask.masks.operator import Cost, all_positive
from topomask.ops import segments
from topomask.ops.derived import plainly
from topomask.ops.registration import has_values
from topomask.ops.sparse_heads import multiply
from topomask.ops.sparse_product import spmm

# Powers of W are cached as dense matrices up to this many numbers, 16 MB.
_MAX_KEPT_POWERS = 1 << 22


class PowerSeriesMask(GraphMask):
    r"""An exact power series of the adjacency matrix, by repeated sparse products.

    .. math:: M = \sum_{k=0}^{K} \alpha_k W^k

    A product takes O(K E) by Horner's rule, and nothing of size N x N. Attention over pairs uses those of the same
    graph, :math:`\sum_g n_g^2` on a batch of graphs, and computes the entries of the powers of W once.

    Args:
        graph: The default graph.
        coefficients: Initial :math:`\alpha`, [K + 1] or [H, K + 1]. A tensor that requires a gradient is used as it is,
            and shared by all heads if it is [K + 1]; any other is copied into a parameter. See :mod:`topomask.series`
            for named kernels. Default: :math:`2^{-k}`.
        num_heads: Heads H; each has its own coefficients, [H, K + 1]. Default: that of ``coefficients``, else 1.
        order: Highest power K. Default: that of ``coefficients``, else 10.
        normalization: ``"sym"``, ``"row"`` or ``"none"``, see :meth:`topomask.Graph.adjacency`.
        edge_weights: Weights to use instead of the graph's, one per entry of ``graph.to_edge_index()``; differentiable.
            An ``nn.Parameter`` is learnt, a tensor that requires a gradient is used as it is, any other becomes a
            buffer. On an undirected graph, the two directions of an edge are averaged.

    Example:
        >>> import torch, topomask as tm
        >>> mask = tm.PowerSeriesMask(tm.path_graph(3), tm.series.heat(8))
        >>> mask.to_dense().shape
        torch.Size([1, 3, 3])
        >>> tm.PowerSeriesMask(tm.path_graph(3), num_heads=4, order=8).coefficients.shape
        torch.Size([4, 9])

    References:
        Reid et al. (2025), Eq. 4.
    """

    coefficients: Tensor
    edge_weights: Tensor | None

    def __init__(
        self,
        graph: Graph | None = None,
        coefficients: Tensor | None = None,
        *,
        num_heads: int | None = None,
        order: int | None = None,
        normalization: Normalization | None = None,
        edge_weights: Tensor | None = None,
    ) -> None:
        alpha = _check_coefficients(coefficients, num_heads, order)
        super().__init__(graph, num_heads or (1 if alpha.ndim == 1 else len(alpha)))
        if edge_weights is not None and graph is None:
            raise ValueError("`edge_weights` belong to the edges of a graph. Pass the graph too.")
        if not alpha.requires_grad:
            alpha = alpha if num_heads is None else alpha.expand(num_heads, -1)
            alpha = nn.Parameter(alpha.detach().clone())
        self.coefficients = alpha
        if edge_weights is None or edge_weights.requires_grad:
            self.edge_weights = edge_weights
        else:
            self.register_buffer("edge_weights", edge_weights)
        self._recipe = _SeriesRecipe(normalization, alpha.shape[-1] - 1, BlocksRecipe.of(self.num_heads)).shared()
        if graph is not None and not alpha.is_meta:
            self._record(graph)

    @property
    def kind(self) -> tuple[torch.dtype, torch.device]:
        """The precision, at least float32, and device of the coefficients, which may not be a parameter."""
        return torch.promote_types(self.coefficients.dtype, torch.float32), self.coefficients.device

    def _record(self, graph: Graph) -> _Series:
        if self.edge_weights is None:
            return super()._record(graph)
        if graph is not self._graph:
            raise ValueError("The `edge_weights` of this mask belong to its own graph. Build a new mask for others.")
        record: _Series = super()._record(graph)
        if self.edge_weights.shape != record.row.shape:
            raise ValueError(
                f"`edge_weights` must have shape [{len(record.row)}], but has shape {tuple(self.edge_weights.shape)}. "
                "Pass one weight per entry of graph.to_edge_index()."
            )
        return record

    def _state(self) -> list[Tensor]:
        # Tensors that are used as they are may not be registered.
        return [self.coefficients] + ([] if self.edge_weights is None else [self.edge_weights])

    def _operator(self, graph: Graph, record: _Series) -> PowerSeriesOperator:
        return PowerSeriesOperator(self, graph, record)


def _check_coefficients(coefficients: Tensor | None, num_heads: int | None, order: int | None) -> Tensor:
    """Return the coefficients, [K + 1] or [H, K + 1]; raise if they contradict the heads or the order."""
    if num_heads is not None:
        check_integer("num_heads", num_heads, 1)
    if order is not None:
        check_integer("order", order, 0)
    if coefficients is None:
        return 0.5 ** torch.arange((10 if order is None else order) + 1)
    alpha = torch.as_tensor(coefficients)
    if alpha.ndim not in (1, 2) or not alpha.shape[-1]:
        raise ValueError(f"`coefficients` must have shape [K + 1] or [H, K + 1], but has shape {tuple(alpha.shape)}.")
    heads, size = len(alpha) if alpha.ndim == 2 else num_heads, alpha.shape[-1]
    if num_heads not in (None, heads) or order not in (None, size - 1):
        expected = [f"num_heads={num_heads}"] * (num_heads is not None) + [f"order={order}"] * (order is not None)
        raise ValueError(
            f"`coefficients` has shape {tuple(alpha.shape)}, which contradicts {' and '.join(expected)}. Pass shape "
            "[order + 1] or [num_heads, order + 1], or leave out `num_heads` and `order`."
        )
    return alpha if alpha.is_floating_point() else alpha.to(torch.get_default_dtype())


class PowerSeriesOperator(BlockOperator):
    """A polynomial of a sparse matrix per head."""

    def __init__(self, mask: PowerSeriesMask, graph: Graph, record: _Series) -> None:
        super().__init__(mask, graph, record.blocks)
        self._record, self._absolute = record, False
        self._alpha = mask.coefficients.to(self.dtype).expand(self.num_heads, -1)  # [H, K + 1]
        self._is_weighted = mask.edge_weights is not None
        self._adjacency = record.matrix.values if mask.edge_weights is None else _weigh(record, mask.edge_weights)

    def matmul(self, x: Tensor) -> Tensor:
        """M x, by Horner's rule with W."""
        return self._series(x)

    def rmatmul(self, x: Tensor) -> Tensor:
        """M^T x, by Horner's rule with W^T."""
        return self._series(x, transpose=True)

    def _series(self, x: Tensor, transpose: bool = False) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        alpha, values = self._alpha.to(dtype), self._adjacency.to(dtype)
        # Nodes come first, as products take them, so that nothing is transposed in between.
        first = x.to(dtype).movedim(-2, 0).contiguous()  # [N, ..., H, C]
        out = alpha[:, -1, None] * first
        for k in range(alpha.shape[1] - 2, -1, -1):
            product = spmm(self._record.matrix.pattern, values, out.flatten(1), transpose)
            out = torch.addcmul(product.view(out.shape), alpha[:, k, None], first)
        return out.movedim(0, -2).to(x.dtype)

    def to_dense(self) -> Tensor:
        """M, [H, N, N]."""
        if self._keeps_powers(self.num_keys**2):
            return torch.einsum("hk,kij->hij", self._alpha, self._powers(in_blocks=False))
        eye = torch.eye(self.num_keys, dtype=self.dtype, device=self.device)
        return self.matmul(eye.expand(self.num_heads, -1, -1))

    def _block_values(self) -> Tensor:
        if self._keeps_powers(self._blocks.num_pairs):
            return self._alpha @ self._powers(in_blocks=True)
        return gather_blocks(self._blocks, lambda x: self.matmul(x.to(self.dtype).expand(self.num_heads, -1, -1)))

    def _keeps_powers(self, num_entries: int) -> bool:
        """Whether powers are small and fixed, so that they are cached and learning coefficients needs no products."""
        size = self._alpha.shape[1] * num_entries
        return not self._is_weighted and size <= _MAX_KEPT_POWERS and has_values(self._record.matrix.values)

    def _powers(self, in_blocks: bool) -> Tensor:
        return self._record.powers(self._absolute and self._record.signed, in_blocks, self.dtype)

    def magnitude(self) -> PowerSeriesOperator:
        """The series of |W| with absolute coefficients."""
        return self if self._is_positive() else self._once("magnitude", self._magnitude)

    def _magnitude(self) -> PowerSeriesOperator:
        return self._copy(_alpha=self._alpha.abs(), _adjacency=self._adjacency.abs(), _absolute=True)

    def _is_positive(self) -> bool:
        """Whether nothing is negative, so that the operator is its own magnitude, gradient included."""
        if self._absolute or self._record.signed or self._is_weighted or not has_values(self._alpha):
            return self._absolute
        return self._once("positive", lambda: all_positive(self._alpha))

    def cost(self) -> Cost:
        """The entries of W times the order, per head; cached powers are added up."""
        nodes, pairs, numbers = self.num_keys, self._blocks.num_pairs, self._alpha.numel()
        product = (numbers - self.num_heads) * (len(self._adjacency) + nodes)
        refresh = product
        if self._num_entries is not None:
            # A multiply-add of a product costs a twentieth of one that computes an entry from walks.
            kept = self._keeps_powers(pairs)
            refresh = max(1, numbers * pairs // 20) if kept else product * max(1, self._blocks.largest // 20)
        return Cost(
            product,
            dense=numbers * nodes**2 if self._keeps_powers(nodes**2) else product * nodes,
            refresh=0 if self._is_kept else refresh,
            pairs=self._num_entries,
            max_pairs=self._num_entries,
            passes=self._alpha.shape[1] - 1,
        )


@dataclass(eq=False)
class _Series(Record):
    """The adjacency matrix of a graph, and its powers."""

    matrix: SparseMatrix  # in float64; a product casts it to its own precision
    row: Tensor  # of every entry, [P]
    reverse: Tensor | None  # the index of the reverse of every edge, [P]; None for a directed graph
    normalization: Normalization
    order: int
    signed: bool  # whether an entry is negative
    blocks: GraphBlocks
    kept: dict[tuple[bool, bool, torch.dtype], Tensor] = field(default_factory=dict, init=False)

    def powers(self, absolute: bool, in_blocks: bool, dtype: torch.dtype) -> Tensor:
        """Return the powers of W or |W|, [K + 1, N, N], or only their entries within graphs, [K + 1, P]."""

        def all_powers(x: Tensor) -> Tensor:
            powers = [x]
            for _ in range(self.order):
                powers.append(multiply(self.matrix.pattern, values, powers[-1], 1))
            return torch.stack(powers)

        key = absolute, in_blocks, dtype
        if key not in self.kept:
            with plainly():
                values = (self.matrix.values.abs() if absolute else self.matrix.values)[None]
                if in_blocks:
                    powers = gather_blocks(self.blocks, all_powers)
                else:
                    powers = all_powers(torch.eye(len(self.blocks.places), dtype=values.dtype, device=values.device))
                self.kept[key] = powers.to(dtype)
        return self.kept[key]


def _weigh(record: _Series, weights: Tensor) -> Tensor:
    """Return the entries of W, [P], with these edge weights, in at least float32."""
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    if record.reverse is not None:
        weights = (weights + weights[record.reverse]) / 2
    if record.normalization == "none":
        return weights
    row, column = record.row, record.matrix.pattern.columns
    degrees = weights.new_zeros(len(record.blocks.places)).index_add(0, row, weights.abs())
    # A node whose weights are all 0 is isolated. Its degree is replaced before the root, whose slope at 0 is infinite.
    degrees = torch.where(degrees > 0, degrees, 1.0)
    return weights / (degrees[row].sqrt() * degrees[column].sqrt() if record.normalization == "sym" else degrees[row])


@dataclass(frozen=True)
class _SeriesRecipe(Recipe):
    normalization: Normalization | None
    order: int
    blocks: BlocksRecipe

    def make(self, graph: Graph, device: torch.device, dtype: torch.dtype) -> _Series:  # noqa: ARG002
        matrix = graph.matrix(self.normalization, torch.float64, device)
        # The pattern is public: somebody may have written to it.
        matrix.pattern.check()
        return _Series(
            matrix,
            segments.index(matrix.pattern.row_ptr),
            # An undirected graph has a symmetric pattern, so the column order lists the reverse of every edge.
            None if graph.directed else matrix.pattern.order,
            graph.check_normalization(self.normalization),
            self.order,
            graph.signed,
            self.blocks.find(graph, device),
        )
