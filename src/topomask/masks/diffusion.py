"""Diffusion (heat) kernels of graphs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from scipy.special import pdtrc
from torch import Tensor, nn

from topomask.graph import Graph
from topomask.graph.records import Recipe, Record
from topomask.masks.graph_blocks import BlockOperator, BlocksRecipe, GraphBlocks, gather_blocks
from topomask.masks.graph_operator import GraphMatrix, ScaledMatrix, scale_matrix, walk_graph
from topomask.masks.mask import GraphMask
from topomask.masks.operator import Cost
from topomask.masks.walk import WalkMask
from topomask.ops.diffusion import count_terms, diffuse
from topomask.ops.registration import has_values
from topomask.support.checks import check_choice
from topomask.walks.modulation import positive_per_head
from topomask.walks.sample import check_sizes

# Terms of the series for a typical time.
_TERMS = 16
# Truncation error of products that are treated as exact.
_EXACT = torch.finfo(torch.float64).eps


class DiffusionMask(GraphMask):
    r"""The diffusion (heat) kernel of a graph, with a learnable time per head, by a Chebyshev series.

    .. math:: M = \exp(-\lambda T), \qquad T \in \{D - A,\; I - D^{-1/2} A D^{-1/2},\; -A\}

    With the eigenvalues of T in [0, 2r] and :math:`z = \lambda r`,

    .. math:: M x = \sum_k (-1)^k p_k\,T_k(T/r - I)\,x, \qquad p_0 = e^{-z} I_0(z), \quad p_k = 2 e^{-z} I_k(z)

    where :math:`T_k` are Chebyshev polynomials and :math:`I_k` Bessel functions: O(K E) for K terms. It takes three
    vectors of memory, even for the gradient, since :math:`\partial_\lambda M = -T M`. K depends on :math:`\lambda`, and
    is about :math:`\sqrt{2 z \log(2/\text{tolerance})}` for large z; it is computed in every product, even inside
    ``torch.compile``. The exponential of a Laplacian stays below 1. That of -A grows like :math:`e^{\lambda \rho(A)}`:
    it is computed with :math:`\rho(A)` added to the diagonal, per connected component, and raises beyond
    :math:`e^{80}`.

    The graph must be undirected, so that T is symmetric. Degrees are sums of absolute weights, and a self-loop counts
    once. An isolated node has :math:`T_{ii} = 0` and :math:`M_{ii} = 1`, also for the normalised Laplacian, as in SciPy
    and NetworkX; the matrix I - W of :mod:`topomask.series` has :math:`T_{ii} = 1` there.

    If no weight is negative, neither is any entry of M. On signed graphs, ``magnitude()`` is the kernel of the absolute
    weights, such as :math:`\exp(-\lambda(D - |A|))`, which dominates :math:`|M|`.

    Args:
        graph: The default graph.
        operator: T, ``"laplacian"``, ``"normalized_laplacian"`` or ``"negated_adjacency"``.
        time: Initial :math:`\lambda > 0`, a number or one per head. Its logarithm is learnt.
        num_heads: Heads; each has its own time.
        tolerance: Largest error of a product from truncating the series, relative to :math:`\lVert x \rVert_2`, or to
            :math:`e^{\lambda \rho(A)} \lVert x \rVert_2` for the negated adjacency. Default: machine epsilon.

    Example:
        >>> import torch, topomask as tm
        >>> mask = tm.DiffusionMask(tm.path_graph(3), time=100.0)
        >>> mask.to_dense()[0, 0]
        tensor([0.3333, 0.3333, 0.3333], grad_fn=<...>)

    References:
        Kondor and Lafferty (2002), Diffusion kernels on graphs. Choromanski et al. (2022), GKAT.
    """

    _shown = ("num_heads", "operator")

    def __init__(
        self,
        graph: Graph | None = None,
        operator: GraphMatrix = "laplacian",
        *,
        time: float | Sequence[float] | Tensor = 1.0,
        num_heads: int = 1,
        tolerance: float | None = None,
    ) -> None:
        super().__init__(graph, num_heads)
        check_choice("operator", operator, get_args(GraphMatrix))
        if tolerance is not None and not 0 < tolerance < 1:
            raise ValueError(f"`tolerance` must lie between 0 and 1, but is {tolerance}.")
        self.operator: GraphMatrix = operator
        self.tolerance = tolerance
        self.log_time = nn.Parameter(positive_per_head("time", time, num_heads).log())
        self._recipe = _HeatRecipe(operator, BlocksRecipe.of(num_heads)).shared()
        if graph is not None and not self.log_time.is_meta:
            self._record(graph)

    def time(self) -> Tensor:
        r"""Return the diffusion time :math:`\lambda`, [H]."""
        return self.log_time.to(torch.promote_types(self.log_time.dtype, torch.float32)).exp()

    def _operator(self, graph: Graph, record: _Heat) -> DiffusionOperator:
        return DiffusionOperator(self, graph, record)

    def by_walks(
        self, num_walks: int = 20, max_length: int | None = None, *, symmetric: bool = True, **options: Any
    ) -> WalkMask:
        r"""Return the same kernel by graph random features: O(N) per product for any time, at the price of variance.

        .. math:: \exp(-\lambda T) = e^{-\lambda s} e^{\lambda s W}, \qquad f_k = e^{-\lambda s/2} (\lambda s/2)^k / k!

        where T = s (I - W). For the normalised Laplacian, s = 1 and W is the ``"sym"`` adjacency; isolated nodes get a
        self-loop. For the Laplacian, s is the largest degree (uniformisation): W = (A + s - D)/s is the adjacency of
        the same graph with self-loops that bring every degree to s, and the returned mask is on that graph. For the
        negated adjacency, :math:`e^{\lambda A}`, W = A and there is no factor in front. The estimate is unbiased except
        for walks longer than ``max_length``, which are left out; a large s needs long walks.

        Args:
            num_walks: Walkers per node, head and ensemble.
            max_length: Longest walk. Default: such that what is left out has norm at most 1e-3, relative to the bound
                :math:`e^{\lambda \rho(A)}` for the negated adjacency and to 1 for Laplacians.
            symmetric: Whether keys walk too. Otherwise :math:`f_k = e^{-\lambda s} (\lambda s)^k / k!`.
            **options: Other arguments of :class:`topomask.WalkMask`, such as ``seed``, ``coupling`` and ``halt_prob``.

        Returns:
            A mask that starts as this kernel, with its own learnable f.

        Example:
            >>> import topomask as tm
            >>> mask = tm.DiffusionMask(tm.grid_graph(4, 4), "normalized_laplacian")
            >>> mask.by_walks(seed=0).f
            tensor([[0.6065, 0.3033, 0.0758, 0.0126, 0.0016]], grad_fn=<...>)
        """
        negated, own = self.operator == "negated_adjacency", self.graph_or(None)
        graph, scale = walk_graph(own, self.operator)
        rates = self.time().detach().to("cpu", torch.float64) * (scale / 2.0 if symmetric else scale)
        if max_length is None:
            most = float(rates.max()) * (self._record(own).matrix.growth if negated else 1.0)
            max_length = _count_steps(most, 1e-3 / (2 if symmetric else 1))
        check_sizes(num_walks, max_length, self.num_heads)
        lengths = torch.arange(max_length + 1, dtype=torch.float64, device="cpu")
        # In logarithms: the factor exp(-rate) may underflow although the product does not.
        powers = torch.special.xlogy(lengths, rates[:, None]) - torch.lgamma(lengths + 1.0)
        f = (powers if negated else powers - rates[:, None]).exp().to(self.log_time)
        return WalkMask(
            graph,
            num_walks=num_walks,
            max_length=max_length,
            num_heads=self.num_heads,
            normalization="none" if negated else "sym",
            symmetric=symmetric,
            f=f,
            **options,
        )


class DiffusionOperator(BlockOperator):
    """The exponential of a symmetric matrix per head, known by its products."""

    def __init__(self, mask: DiffusionMask, graph: Graph, record: _Heat) -> None:
        super().__init__(mask, graph, record.blocks)
        self._matrix, self._values = record.matrix, record.matrix.entries
        self._times, self._tolerance = mask.time(), mask.tolerance

    @property
    def num_terms(self) -> list[int]:
        """Terms of the series per head; without a tolerance, for products in float32."""
        return self._count_terms(self._tolerance_in(torch.float32))

    def _count_terms(self, tolerance: float) -> list[int]:
        if not has_values(self._times):
            # Times are unknown, and this is only an estimate of the cost.
            return [_TERMS] * self.num_heads
        return self._once(
            ("terms", tolerance),
            lambda: [count_terms(time, self._matrix.radius, tolerance) for time in self._times.detach().tolist()],
        )

    def _tolerance_in(self, dtype: torch.dtype) -> float:
        return torch.finfo(dtype).eps if self._tolerance is None else self._tolerance

    def _act(self, x: Tensor, tolerance: float) -> Tensor:
        """Return M x in the precision of x."""
        matrix = self._matrix
        first = -2 if self.num_heads == 1 else -3
        moved = x.movedim(tuple(range(first, -1)), tuple(range(-1 - first)))  # heads and nodes, or nodes, in front
        rest = moved.shape[-1 - first :]
        flat = moved.reshape(self.num_heads, self.num_keys, rest.numel())
        values = self._values.to(x.dtype)
        out = diffuse(matrix.pattern, values, self._times, flat, matrix.bounds, tolerance)
        if matrix.grows:
            out = out * self._growth(self._times, out.dtype)
        return out.reshape(moved.shape).movedim(tuple(range(-1 - first)), tuple(range(first, -1)))

    def _growth(self, times: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the factor that undoes the shift of the matrix, [H, N, 1]; [H, 1, 1] if it is the same everywhere."""
        shift = self._matrix.shift if self._matrix.num_components > 1 else self._matrix.shift[:1]
        return (times.to(dtype)[:, None, None] * shift.to(dtype)[:, None]).exp()

    def matmul(self, x: Tensor) -> Tensor:
        """The Chebyshev series of M times x."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        return self._act(x.to(dtype), self._tolerance_in(dtype)).to(x.dtype)

    rmatmul = matmul  # M is symmetric

    def to_dense(self) -> Tensor:
        """M, [H, N, N], computed in float64; entries within its rounding error are 0."""
        return self._exact(torch.eye(self.num_keys, dtype=torch.float64, device=self.device))

    def _exact(self, x: Tensor) -> Tensor:
        dense = self._act(x.expand(self.num_heads, -1, -1), _EXACT)
        # Without these, a nonnegative operator stays nonnegative.
        return dense.masked_fill(dense.detach().abs() <= self._rounding(), 0.0).to(self.dtype)

    def _block_values(self) -> Tensor:
        return gather_blocks(self._blocks, self._exact)

    def product_noise(self, x: Tensor) -> Tensor:
        """The measured error of a product, [..., H, N, C]; see :meth:`Operator.product_noise`.

        It is the largest difference from the product in float64 within the connected component of an entry, relative
        to the norm of x there and over all columns, since one column may be lucky, but at least the rounding error of
        the largest number. This is multiplied by four, since attention may add in another order, and a bound on the
        error in float64 is added. Errors do not cross components: there, 0 is computed as 0. A worst-case bound would
        assume that the errors of all nodes add up, and would exceed what a query of a large graph attends to.
        """
        with torch.no_grad():
            exact, dtype = x.detach().double(), torch.promote_types(x.dtype, torch.float32)
            norms = self._over_components(exact.square(), "sum").sqrt()
            noise = self._rounding() * norms
            if x.shape[-1] and (dtype != torch.float64 or self._tolerance is not None):
                found, expected = self.matmul(x.detach().to(dtype)), self._act(exact, _EXACT)
                errors = self._over_components((found - expected).abs(), "amax")
                relative = torch.where(norms > 0, errors / norms, 0.0).amax(dim=-1, keepdim=True)
                last_digit = torch.finfo(dtype).eps * self._over_components(expected.abs(), "amax")
                noise = noise + 4.0 * (relative * norms + last_digit)
            return noise.to(dtype)

    def _over_components(self, x: Tensor, reduce: str) -> Tensor:
        """Return sums or maxima over the connected component of every node, [..., N, C]; [..., 1, C] for one."""
        if self._matrix.num_components == 1:
            return x.sum(dim=-2, keepdim=True) if reduce == "sum" else x.amax(dim=-2, keepdim=True)
        places = self._matrix.component[:, None].expand_as(x)
        zeros = x.new_zeros(*x.shape[:-2], self._matrix.num_components, x.shape[-1])
        return zeros.scatter_reduce(-2, places, x, reduce).index_select(-2, self._matrix.component)

    def _rounding(self) -> Tensor:
        r"""A bound on the rounding errors in float64, relative to the norm of x, [H, N, 1] or [H, 1, 1].

        .. math:: \epsilon \sqrt{w}\,(z + 3\sqrt z + 2)

        An error in one step of the recurrence is multiplied by a Chebyshev polynomial of the second kind, at most by
        k + 1 after k steps, so terms contribute :math:`\sum_k p_k (k+1)(k+2)/2 \le (z + 3\sqrt z + 2)/2`, since the
        distribution p has second moment z. One step sums at most w products per entry. Their rounding errors are
        assumed to be independent, hence the root of w.
        """
        times = self._times.detach().double()
        z = (times * self._matrix.bounds[0])[:, None, None]
        relative = (self._matrix.longest_row + 2.0).sqrt() * (z + 3.0 * z.sqrt() + 2.0)
        return _EXACT * relative * self._growth(times, torch.float64)

    def magnitude(self) -> DiffusionOperator:
        """The kernel of the absolute weights; the operator itself if no weight is negative."""
        absolute = self._matrix.absolute
        return self if self._values is absolute else self._once("magnitude", lambda: self._copy(_values=absolute))

    def cost(self) -> Cost:
        """The entries of T plus two operations per node, times the number of terms over all heads."""
        step = len(self._values) + 2 * self.num_keys
        product = sum(self.num_terms) * step
        # A multiply-add of a product costs a twentieth of one that computes an entry from walks.
        columns = 1 if self._num_entries is None else max(1, self._blocks.largest // 20)
        return Cost(
            product,
            dense=sum(self._count_terms(_EXACT)) * step * self.num_keys,
            refresh=0 if self._is_kept else product * columns,
            pairs=self._num_entries,
            max_pairs=self._num_entries,
        )


def _count_steps(rate: float, tolerance: float) -> int:
    """Return the length that a Poisson variable exceeds with probability at most ``tolerance``."""
    lengths = np.arange(int(rate + 10.0 * math.sqrt(rate)) + 20)
    return int(np.argmax(pdtrc(lengths, rate) <= tolerance))


@dataclass(eq=False)
class _Heat(Record):
    matrix: ScaledMatrix
    blocks: GraphBlocks


@dataclass(frozen=True)
class _HeatRecipe(Recipe):
    matrix: GraphMatrix
    blocks: BlocksRecipe

    def make(self, graph: Graph, device: torch.device, dtype: torch.dtype) -> _Heat:  # noqa: ARG002
        if graph.directed:
            raise ValueError(
                "`graph` must be undirected, but is directed: the series of DiffusionMask converges for symmetric "
                "matrices only. Build the graph with directed=False, or use PowerSeriesMask(graph, series.heat(order))."
            )
        return _Heat(scale_matrix(graph, self.matrix).to(device), self.blocks.find(graph, device))
