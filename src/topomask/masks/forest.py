"""Masks of distances in trees."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from scipy.sparse.csgraph import minimum_spanning_tree
from torch import Tensor, nn
from torch.nn import functional as F

from topomask.graph import Graph
from topomask.graph.input import check_counts, check_integer, not_a_graph
from topomask.graph.records import Recipe, Record
from topomask.masks.graph_operator import with_matrix
from topomask.masks.mask import GraphMask
from topomask.masks.operator import Cost, Operator
from topomask.ops.forest_sums import forest_sums
from topomask.ops.forest_table import Decomposition, count_transformed_levels, decompose, forest_table
from topomask.ops.registration import has_values
from topomask.ops.rooted_forest import RootedForest, diameter, distances, root_forest
from topomask.walks.modulation import table_per_head

# exp of more than this, times a sum, overflows float32.
MAX_GROWTH = 80.0
# A table may have at most this many distances per node: with more, convolutions would dominate the time.
MAX_DISTANCES_PER_NODE = 64
# Rounding errors of a transform, in units of the last place, per log2 of its size.
_NOISE = 1.0
# Multiply-adds per node, at the rate of sparse products: of the two passes, and of one level of cuts.
_PASS_COST, _LEVEL_COST = 6, 4


class ForestMask(GraphMask):
    r"""A function of the distance in a tree, or in the trees of a forest, that never forms pairs of nodes.

    .. math:: M_{ij} = f(\mathrm{dist}(i, j)), \qquad f(d) = \sum_r c_r\,e^{a_r d} \quad\text{or any table}

    and 0 between different trees. Exponentials take O(N) for any edge lengths, with one pass from the leaves to the
    roots and one back. A table takes O(N log^2 N): the forest is cut in two recursively, and sums over distances to the
    cut are convolutions. With integer lengths up to a diameter D, a table takes
    :math:`O(N \sqrt{D \log D} \log N)` in the worst case, and O((N + D log D) log N) if long edges are few.

    Args:
        graph: An undirected graph without cycles. See :meth:`from_graph` for others.
        num_heads: Heads; each has its own f.
        num_terms: Exponentials R. One term is :math:`e^{a d + b}`, always positive; several have coefficients of any
            sign.
        rate: Initial rates :math:`-a_r`: a number, [R] or [H, R]. Default: 1, 1/2, 1/4, ...
        table: Initial f as a table instead, at the distances 0, 1, ..., [K] or [H, K]; 0 at larger distances.
        weighted: Use the weights of the graph as lengths of edges; for a table, they must be integers. Otherwise every
            edge has length 1.
        growing: Learn rates of any sign. Otherwise :math:`a_r < 0`, and :math:`\log(-a_r)` is learnt. Raises if a times
            the diameter exceeds 80, since float32 would overflow.

    Example:
        >>> import torch, topomask as tm
        >>> tm.ForestMask(tm.path_graph(3), rate=0.6931).to_dense()
        tensor([[[1.0000, 0.5000, 0.2500],
                 [0.5000, 1.0000, 0.5000],
                 [0.2500, 0.5000, 1.0000]]], grad_fn=<...>)

    References:
        Choromanski et al. (2022). Lengths are integers, or f is a sum of exponentials: an arbitrary f of N distinct
        real distances takes quadratic time.
    """

    def __init__(
        self,
        graph: Graph | None = None,
        *,
        num_heads: int = 1,
        num_terms: int = 1,
        rate: float | Tensor | None = None,
        table: Tensor | None = None,
        weighted: bool = False,
        growing: bool = False,
    ) -> None:
        check_counts(num_heads=num_heads, num_terms=num_terms)
        if table is not None and (rate is not None or num_terms > 1 or growing):
            raise ValueError("`table` replaces the exponentials. Leave out `rate`, `num_terms` and `growing`.")
        super().__init__(graph, num_heads)
        self.num_terms, self.weighted, self.growing = num_terms, weighted, growing
        self.table: nn.Parameter | None = None
        if table is not None:
            table = torch.as_tensor(table)
            size = table.shape[-1] if table.ndim else 0
            check_integer("table.shape[-1]", size, 1)
            self.table = nn.Parameter(table_per_head("table", table, num_heads, size, str(size), "distance from 0"))
        else:
            self._start_terms(rate)
        self._recipe = _ForestRecipe(weighted, cut=table is not None).shared()
        if graph is not None and not next(self.parameters()).is_meta:
            self._check_growth(self._record(graph))

    def _start_terms(self, rate: float | Tensor | None) -> None:
        rate = 0.5 ** torch.arange(self.num_terms) if rate is None else torch.as_tensor(rate)
        rate = rate if rate.is_floating_point() else rate.to(torch.get_default_dtype())
        rate = rate.expand(self.num_terms) if rate.ndim == 0 else rate
        start = table_per_head("rate", rate, self.num_heads, self.num_terms, f"num_terms={self.num_terms}", "term")
        if not self.growing and has_values(start) and not bool((start > 0).all()):
            raise ValueError(f"`rate` must be positive, but is {start.tolist()}. Pass growing=True for any sign.")
        self.rates = nn.Parameter(start if self.growing else start.log())
        if self.num_terms == 1:
            self.offset = nn.Parameter(torch.zeros_like(start[:, 0]))
        else:
            self.coefficients = nn.Parameter(torch.full_like(start, 1.0 / self.num_terms))

    @classmethod
    def from_graph(cls, graph: Graph, **options: Any) -> Self:
        """Return the mask on a minimum spanning forest of a graph.

        Args:
            graph: An undirected graph with positive weights.
            **options: Other arguments of :class:`ForestMask`, such as ``num_heads``.
        """
        if not isinstance(graph, Graph):
            raise not_a_graph(graph)
        if graph.directed or graph.signed:
            raise ValueError(
                f"A minimum spanning forest needs an undirected graph with positive weights, but this one is "
                f"{'directed' if graph.directed else 'signed'}. Build it with directed=False and absolute weights."
            )
        tree = minimum_spanning_tree(graph.to_scipy())
        both = (tree + tree.T).tocsr()
        both.sort_indices()
        return cls(with_matrix(graph, both, np.asarray(both.sum(axis=1)).ravel()), **options)

    def _check_growth(self, record: _Forest) -> None:
        """Raise if entries would overflow."""
        if self.table is not None or not has_values(self.rates):
            return
        rate = max(0.0, float(-self.rates.detach().amin())) if self.growing else 0.0
        offset = float(self.offset.detach().amax()) if self.num_terms == 1 else 0.0
        most = rate * record.diameter + offset
        if most > MAX_GROWTH:
            raise ValueError(
                f"The largest growth rate, {rate:.4g}, times the diameter, {record.diameter:g}, plus the offset, "
                f"{offset:.4g}, is {most:.4g}, and exp of more than {MAX_GROWTH:g} overflows. Use smaller ones."
            )

    def _function(self) -> tuple[Tensor | None, Tensor]:
        """Return exponents and coefficients, [H, R] each, or None and the table, [H, K], in at least float32."""
        dtype, _ = self.kind
        if self.table is not None:
            return None, self.table.to(dtype)
        rates = self.rates.to(dtype)
        coefficients = self.offset.to(dtype).exp()[:, None] if self.num_terms == 1 else self.coefficients.to(dtype)
        return -(rates if self.growing else rates.exp()), coefficients

    def f(self, distance: Tensor) -> Tensor:
        """Return f of every head, [H, ...], at the given distances, which must be integers for a table."""
        return _evaluate(*self._function(), distance)

    def _operator(self, graph: Graph, record: _Forest) -> ForestOperator:
        self._check_growth(record)
        return ForestOperator(self, graph, record, *self._function())

    def extra_repr(self) -> str:
        """Settings shown when the module is printed."""
        kind = f"num_terms={self.num_terms}" if self.table is None else f"table={self.table.shape[1]}"
        return f"{super().extra_repr()}, {kind}, weighted={self.weighted}"


class ForestOperator(Operator):
    """A function of the distances within every tree.

    ``exponents`` are [H, R], and ``weights`` the coefficients, [H, R]; or None and the table, [H, K].
    """

    def __init__(
        self, mask: ForestMask, graph: Graph, record: _Forest, exponents: Tensor | None, weights: Tensor
    ) -> None:
        super().__init__(mask, graph)
        self._record, self._exponents, self._weights = record, exponents, weights
        self._growing, self._positive = mask.growing, exponents is not None and mask.num_terms == 1
        if exponents is None:
            size = record.num_distances
            self._weights = F.pad(weights, (0, max(0, size - weights.shape[1])))[:, :size]

    def matmul(self, x: Tensor) -> Tensor:
        """Sums over trees, with x as [G, heads of the mask, N, C]."""
        record, exponents, weights = self._record, self._exponents, self._weights
        fine = x.to(torch.promote_types(x.dtype, weights.dtype))
        folded = fine.reshape(math.prod(x.shape[:-2]) // self.num_heads, self.num_heads, *x.shape[-2:])
        if exponents is None:
            assert record.cuts is not None
            out = forest_table(record.cuts, weights.to(fine.dtype), folded)
        else:
            logs = exponents[:, :, None] * record.lengths.to(exponents.dtype)
            out = forest_sums(record.forest, logs, weights, folded, growing=self._growing)
        return out.reshape(x.shape).to(x.dtype)

    rmatmul = matmul  # M is symmetric

    def product_noise(self, x: Tensor) -> Tensor | None:
        r"""A bound on the rounding error of transforms in long trees, [..., H, N, C]; None without transforms.

        .. math:: c\,\epsilon\,\log_2 P\;\lVert f \rVert_2\,\lVert x \rVert_2

        over the tree of a node, times the root of the number of transformed levels of cuts, whose errors are assumed to
        be independent. P bounds the size of a transform.
        """
        record = self._record
        if not record.noisy_levels:
            return None
        norm = torch.linalg.vector_norm(self._weights.detach(), dim=1)[:, None, None]
        dtype = torch.promote_types(x.dtype, norm.dtype)
        squares = x.detach().to(dtype).square()
        total = torch.zeros_like(squares).index_add(-2, record.trees, squares)[..., record.trees, :]
        scale = _NOISE * (1.0 + math.log2(2 * self._weights.shape[1])) * record.noisy_levels**0.5
        return scale * torch.finfo(dtype).eps * norm.to(dtype) * total.sqrt()

    def to_dense(self) -> Tensor:
        """M, [H, N, N]."""
        found, together = distances(self._record.forest, self._record.lengths)
        return torch.where(together, _evaluate(self._exponents, self._weights, found), 0.0)

    def magnitude(self) -> ForestOperator:
        """Absolute values of the table or of the coefficients; the operator itself for one exponential."""
        if self._positive:
            return self
        return self._once("magnitude", lambda: self._copy(_weights=self._weights.abs(), _positive=True))

    def cost(self) -> Cost:
        """Passes over the nodes, two per exponential or one per level of cuts; all distances for a dense matrix."""
        passes = _PASS_COST * self._weights.shape[1] * self.num_keys
        return Cost(
            product=self.num_heads * (self._record.work if self._exponents is None else passes),
            dense=8 * self.num_queries * self.num_keys,
            refresh=0 if self._is_kept else self.num_heads * self.num_keys,
        )


@dataclass(eq=False)
class _Forest(Record):
    forest: RootedForest
    lengths: Tensor  # of the edge to the parent of every place, [N], float64
    trees: Tensor  # the tree of every node, [N]
    diameter: float
    # Integer distances from 0 to the diameter: a number that compiled code treats as a size.
    num_distances: int
    # For tables: the cuts, the number of transformed levels, and multiply-adds of a product.
    cuts: Decomposition | None
    noisy_levels: int
    work: int


@dataclass(frozen=True)
class _ForestRecipe(Recipe):
    weighted: bool
    cut: bool

    def make(self, graph: Graph, device: torch.device, dtype: torch.dtype) -> _Forest:  # noqa: ARG002
        if graph.directed or graph.signed:
            raise ValueError(
                f"`graph` must be an undirected forest with positive weights, but is "
                f"{'directed' if graph.directed else 'signed'}. Build it with directed=False and absolute weights."
            )
        try:
            forest = root_forest(graph.indptr, graph.indices)
        except ValueError as error:
            raise ValueError(
                f"`graph` must be a forest, but {error}. Use ForestMask.from_graph(graph) for a spanning forest (on "
                "the command line: topomask mask spanning-forest)."
            ) from None
        weights = torch.tensor(graph.weights) if self.weighted else torch.ones(len(graph.weights)).double()
        weights = torch.cat([weights, weights.new_zeros(1)])
        lengths = weights[torch.where(forest.above < 0, len(weights) - 1, forest.entries[0]).long()]
        longest = diameter(forest, lengths)
        trees = torch.empty_like(forest.trees).scatter(0, forest.nodes.long(), forest.trees).long()
        cuts = self._cuts(graph, longest) if self.cut else None
        table = (None, 0, 0) if cuts is None else (cuts.to(device), count_transformed_levels(cuts), _count_work(cuts))
        return _Forest(forest.to(device), lengths.to(device), trees.to(device), longest, int(longest) + 1, *table)

    def _cuts(self, graph: Graph, longest: float) -> Decomposition:
        if not self.weighted:
            return decompose(graph.indptr, graph.indices)
        whole = np.rint(graph.weights)
        odd = np.flatnonzero(graph.weights != whole)
        if len(odd):
            raise ValueError(
                f"A table needs integer lengths of edges, but there is an edge of length {graph.weights[odd[0]]:g}. "
                "Round them, or use exponentials (num_terms), which allow any lengths."
            )
        if longest > MAX_DISTANCES_PER_NODE * max(1, graph.num_nodes):
            raise ValueError(
                f"The diameter {longest:g} is more than {MAX_DISTANCES_PER_NODE} times the {graph.num_nodes} "
                "nodes. Divide the lengths by a common factor, or use exponentials (num_terms) instead of a table."
            )
        return decompose(graph.indptr, graph.indices, whole.astype(np.int64))


def _count_work(cuts: Decomposition) -> int:
    slots = cuts.slot_ptr.diff().view(-1, 2)
    work = torch.where(cuts.is_long[::2], slots.sum(dim=1) * 64, slots.prod(dim=1))
    return _LEVEL_COST * cuts.slots.numel() + int(work.sum())


def _evaluate(exponents: Tensor | None, weights: Tensor, distance: Tensor) -> Tensor:
    """Evaluate a sum of exponentials, or a table that is 0 beyond its end, at some distances, [H, ...]."""
    if exponents is None:
        return F.pad(weights, (0, 1))[:, distance.long().clamp(max=weights.shape[1])]
    exponents, weights = (x.reshape(*x.shape, *[1] * distance.ndim) for x in (exponents, weights))
    return (weights * (exponents * distance.to(exponents.dtype)).exp()).sum(dim=1)
