"""Masks of distances on trees."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from scipy.sparse.csgraph import minimum_spanning_tree
from torch import Tensor, nn
from torch.nn import functional as F

from topomask.graph import Graph
from topomask.graph_input import check_integer
from topomask.masks.graph_mask import GraphMask
from topomask.modulation import table_per_head
from topomask.ops.forest_sums import forest_sums
from topomask.ops.forest_table import Decomposition, count_transformed_levels, decompose, forest_table
from topomask.ops.rooted_forest import diameter, distances, root_forest

# exp of more than this, times a sum, does not fit in float32.
MAX_GROWTH = 80.0
# Distances per node that a table may have: their convolutions would take longer than all else.
MAX_DISTANCES_PER_NODE = 64
# Rounding errors of a transform, in units of the last place, per log2 of its size.
_NOISE = 1.0
# Multiply-adds, at the rate of sparse products, per node: of the two passes, and of one level of cuts.
_PASS_COST, _LEVEL_COST = 6, 4


class ForestMask(GraphMask):
    r"""A function of the distance on a tree, or on the trees of a forest: no pairs of nodes are ever formed.

    .. math:: M_{ij} = f(\mathrm{dist}(i, j)), \qquad f(d) = \sum_r c_r\,e^{a_r d} \quad\text{or any table}

    and 0 between different trees. Exponentials take O(N) for any lengths of edges, by one pass from the leaves to the
    roots and one back. A table takes O(N log^2 N): the forest is cut in two again and again, and sums over distances to
    the cut are convolutions. With whole-numbered lengths up to a diameter D a table takes
    :math:`O(N \sqrt{D \log D} \log N)` at worst, and O((N + D log D) log N) where long edges are few.

    Args:
        graph: An undirected graph without cycles. See :meth:`from_graph` for others.
        num_heads: Heads; each has its own f.
        num_terms: Exponentials R. One term is :math:`e^{a d + b}`, always positive; several have coefficients of any
            sign.
        rate: Rates :math:`-a_r` to start from, a number, [R] or [H, R]. Default: 1, 1/2, 1/4, ...
        table: f to start from instead, at the distances 0, 1, ..., [K] or [H, K]. Larger distances count 0.
        weighted: Take the weights of the graph as lengths of edges; for a table, they must be whole numbers.
            Otherwise every edge has length 1.
        growing: Learn rates of any sign. Otherwise :math:`a_r < 0` is learnt through :math:`\log(-a_r)`. Refused where
            a times the diameter exceeds 80, which float32 does not hold.

    Example:
        >>> import torch, topomask as tm
        >>> tm.ForestMask(tm.path_graph(3), rate=0.6931).to_dense()
        tensor([[[1.0000, 0.5000, 0.2500],
                 [0.5000, 1.0000, 0.5000],
                 [0.2500, 0.5000, 1.0000]]], grad_fn=<...>)

    References:
        Choromanski et al. (2022). Lengths are whole numbers, or f is a sum of exponentials: for any f of N distinct
        real distances there is nothing to share between pairs.
    """

    _cuts: Decomposition | None

    def __init__(
        self,
        graph: Graph,
        num_heads: int = 1,
        *,
        num_terms: int = 1,
        rate: float | Tensor | None = None,
        table: Tensor | None = None,
        weighted: bool = False,
        growing: bool = False,
    ) -> None:
        super().__init__()
        check_integer("num_heads", num_heads, 1)
        check_integer("num_terms", num_terms, 1)
        if table is not None and (rate is not None or num_terms > 1 or growing):
            raise ValueError("`table` is f itself. Leave out `rate`, `num_terms` and `growing`: they are exponentials.")
        self.num_heads, self.num_terms, self.weighted, self.growing = num_heads, num_terms, weighted, growing
        self.table: nn.Parameter | None = None
        if table is not None:
            size = torch.as_tensor(table).shape[-1] if torch.as_tensor(table).ndim else 0
            check_integer("table.shape[-1]", size, 1)
            self.table = nn.Parameter(table_per_head("table", table, num_heads, size, str(size), "distance from 0 on"))
        else:
            self._start_terms(rate)
        self._bind(graph)
        self._follow(next(self.parameters()))
        self._check_growth()

    def _start_terms(self, rate: float | Tensor | None) -> None:
        rate = 0.5 ** torch.arange(self.num_terms) if rate is None else torch.as_tensor(rate)
        rate = rate if rate.is_floating_point() else rate.to(torch.get_default_dtype())
        rate = rate.expand(self.num_terms) if rate.ndim == 0 else rate
        start = table_per_head("rate", rate, self.num_heads, self.num_terms, f"num_terms={self.num_terms}", "term")
        if not self.growing and not start.is_meta and not bool((start > 0).all()):
            raise ValueError(f"`rate` must be positive, but is {start.tolist()}. Pass growing=True for any sign.")
        self.rates = nn.Parameter(start if self.growing else start.log())
        if self.num_terms == 1:
            self.offset = nn.Parameter(torch.zeros_like(start[:, 0]))
        else:
            self.coefficients = nn.Parameter(torch.full_like(start, 1.0 / self.num_terms))

    @classmethod
    def from_graph(cls, graph: Graph, num_heads: int = 1, **options: Any) -> Self:
        """The mask on a minimum spanning forest of a graph, by its weights.

        Args:
            graph: An undirected graph with positive weights.
            num_heads: Heads.
            **options: Other arguments of :class:`ForestMask`.
        """
        if graph.directed or graph.signed:
            raise ValueError(
                f"A minimum spanning forest is taken of an undirected graph with positive weights, but this one is "
                f"{'directed' if graph.directed else 'signed'}."
            )
        tree = minimum_spanning_tree(graph.to_scipy())
        both = (tree + tree.T).tocsr()
        both.sort_indices()
        forest = Graph(
            indptr=both.indptr.astype(np.int64),
            indices=both.indices.astype(np.int64),
            weights=both.data,
            directed=False,
            ids=graph.ids,
            degrees=np.asarray(both.sum(axis=1)).ravel(),
            graph_index=graph.graph_index,
            num_graphs=graph.num_graphs,
        )
        return cls(forest, num_heads, **options)

    def _bind(self, graph: Graph) -> None:
        if graph.directed or graph.signed:
            raise ValueError(
                f"`graph` must be an undirected forest with positive weights, but is "
                f"{'directed' if graph.directed else 'signed'}. Build it with directed=False and absolute weights."
            )
        try:
            forest = root_forest(graph.indptr, graph.indices)
        except ValueError as error:
            raise ValueError(
                f"`graph` must be a forest, but {error}. Use ForestMask.from_graph(graph) for a spanning forest."
            ) from None
        super()._bind(graph)
        self._forest = forest
        with torch.device("cpu"), torch.inference_mode(False):
            weights = torch.tensor(graph.weights) if self.weighted else torch.ones(len(graph.weights)).double()
            weights = torch.cat([weights, weights.new_zeros(1)])
            entry = torch.where(forest.above < 0, len(weights) - 1, forest.entries[0])
            self._lengths = weights[entry.long()]  # [N], in the order of places, float64
        self.diameter = diameter(forest, self._lengths)
        self._cuts = self._cut(graph) if self.table is not None else None
        # Now rather than when they are asked for, which may be inside torch.compile.
        self._noisy_levels = 0 if self._cuts is None else count_transformed_levels(self._cuts)
        self._work = _PASS_COST * self.num_terms * self.num_keys if self._cuts is None else _count_work(self._cuts)

    def _cut(self, graph: Graph) -> Decomposition:
        if not self.weighted:
            return decompose(graph.indptr, graph.indices)
        whole = np.rint(graph.weights)
        odd = np.flatnonzero(graph.weights != whole)
        if len(odd):
            raise ValueError(
                f"A table needs lengths that are whole numbers, but there is an edge of length "
                f"{graph.weights[odd[0]]:g}. Round them, or use exponentials (num_terms), which take any lengths."
            )
        if self.diameter > MAX_DISTANCES_PER_NODE * max(1, graph.num_nodes):
            raise ValueError(
                f"The diameter {self.diameter:g} is more than {MAX_DISTANCES_PER_NODE} times the {graph.num_nodes} "
                "nodes. Divide the lengths by a common factor, or use exponentials (num_terms), which take any lengths."
            )
        return decompose(graph.indptr, graph.indices, whole.astype(np.int64))

    def _check_growth(self) -> None:
        """A ValueError where entries would overflow; inside torch.compile rates cannot be looked at."""
        if self.table is not None or torch.compiler.is_compiling() or self.rates.is_meta:
            return
        rate = max(0.0, float(-self.rates.detach().amin())) if self.growing else 0.0
        offset = float(self.offset.detach().amax()) if self.num_terms == 1 else 0.0
        most = rate * self.diameter + offset
        if most > MAX_GROWTH:
            raise ValueError(
                f"The largest rate of growth, {rate:.4g}, times the diameter, {self.diameter:g}, and the offset, "
                f"{offset:.4g}, give {most:.4g}, and exp of more than {MAX_GROWTH:g} overflows. Use smaller ones."
            )

    def _terms(self) -> tuple[Tensor, Tensor]:
        """Exponents a [H, R] and coefficients c [H, R], in at least float32."""
        wide = torch.promote_types(self.rates.dtype, torch.float32)
        exponents = -(self.rates.to(wide) if self.growing else self.rates.to(wide).exp())
        coefficients = self.offset.to(wide).exp()[:, None] if self.num_terms == 1 else self.coefficients.to(wide)
        return exponents, coefficients.abs() if self._is_magnitude else coefficients

    def _table(self, size: int) -> Tensor:
        """The table with ``size`` entries, [H, size], in at least float32."""
        assert self.table is not None
        table = self.table.to(torch.promote_types(self.table.dtype, torch.float32))
        table = table.abs() if self._is_magnitude else table
        return F.pad(table, (0, max(0, size - table.shape[1])))[:, :size]

    def f(self, distance: Tensor) -> Tensor:
        """The function f of every head, [H, ...], at some distances; whole numbers for a table."""
        if self.table is not None:
            table = self._table(max(self.table.shape[1], int(self.diameter) + 1))
            return table[:, distance.long()]
        exponents, coefficients = (x.reshape(*x.shape, *[1] * distance.ndim) for x in self._terms())
        return (coefficients * (exponents * distance).exp()).sum(dim=1)

    def product(self) -> Callable[[Tensor], Tensor]:
        """Multiplication by M with exponentials, or the table, computed once."""
        self._check_growth()
        if self._cuts is not None:
            cuts, table = self._cuts, self._table(int(self.diameter) + 1)
            return lambda x: self._fold(x, table.dtype, lambda y: forest_table(cuts, table.to(y.dtype), y))
        exponents, coefficients = self._terms()
        logs = exponents[:, :, None] * self._lengths.to(exponents.dtype)
        return lambda x: self._fold(
            x, logs.dtype, lambda y: forest_sums(self._forest, logs, coefficients, y, growing=self.growing)
        )

    def _fold(self, x: Tensor, dtype: torch.dtype, multiply: Callable[[Tensor], Tensor]) -> Tensor:
        """A product with x [..., H, N, C], as [G, heads of the mask, N, C]."""
        fine = x.to(torch.promote_types(x.dtype, dtype))
        count = math.prod(x.shape[:-2]) // self.num_heads
        return multiply(fine.reshape(count, self.num_heads, *x.shape[-2:])).reshape(x.shape).to(x.dtype)

    def matmul(self, x: Tensor) -> Tensor:
        """Sums over trees."""
        return self.product()(x)

    def rmatmul(self, x: Tensor) -> Tensor:
        """The same: M is symmetric."""
        return self.product()(x)

    def product_noise(self, x: Tensor) -> Tensor | None:
        r"""A bound on the rounding error where long trees go through transforms, [..., H, N, C]; None elsewhere.

        .. math:: c\,\epsilon\,\log_2 P\;\lVert f \rVert_2\,\lVert x \rVert_2

        over the tree of a node, times the root of the number of levels of cuts that are transformed, whose errors are
        taken for independent. P bounds the size of a transform.
        """
        if self._cuts is None or not self._noisy_levels:
            return None
        table = self._table(int(self.diameter) + 1).detach()
        dtype = torch.promote_types(x.dtype, table.dtype)
        trees = torch.empty_like(self._forest.trees).scatter(0, self._forest.nodes.long(), self._forest.trees).long()
        squares = x.detach().to(dtype).square()
        total = torch.zeros_like(squares).index_add(-2, trees, squares)[..., trees, :]
        scale = _NOISE * torch.finfo(dtype).eps * self._noisy_levels**0.5 * (1.0 + math.log2(2.0 * self.diameter + 2.0))
        return scale * torch.linalg.vector_norm(table, dim=1)[:, None, None].to(dtype) * total.sqrt()

    def to_dense(self) -> Tensor:
        """M, [H, N, N]."""
        self._check_growth()
        found, together = distances(self._forest, self._lengths)
        if self.table is None:
            found = found.to(self._terms()[0].dtype)
        return torch.where(together, self.f(found), 0.0)

    def magnitude(self) -> ForestMask:
        """Absolute values of the table or of the coefficients; the mask itself for one exponential."""
        positive = self.table is None and self.num_terms == 1
        return self if positive or self._is_magnitude else self._magnitude_view()

    @property
    def product_cost(self) -> int:
        """Passes over the nodes, per head: two per exponential, or one per level of cuts."""
        return self.num_heads * self._work

    @property
    def dense_cost(self) -> int:
        """Distances between all nodes."""
        return 8 * self.num_queries * self.num_keys

    @property
    def refresh_cost(self) -> int:
        """A number per node, unless the dense matrix is kept."""
        return 0 if self._is_frozen() else self.num_heads * self.num_keys

    def _move(self, device: torch.device, dtype: torch.dtype) -> None:
        super()._move(device, dtype)
        self._forest, self._lengths = self._forest.to(device), self._lengths.to(device)
        self._cuts = None if self._cuts is None else self._cuts.to(device)

    def extra_repr(self) -> str:
        """Shown when the module is printed."""
        kind = f"num_terms={self.num_terms}" if self.table is None else f"table={self.table.shape[1]}"
        return f"{super().extra_repr()}, {kind}, weighted={self.weighted}"


def _count_work(cuts: Decomposition) -> int:
    slots = cuts.slot_ptr.diff().view(-1, 2)
    work = torch.where(cuts.is_long[::2], slots.sum(dim=1) * 64, slots.prod(dim=1))
    return _LEVEL_COST * cuts.slots.numel() + int(work.sum())
