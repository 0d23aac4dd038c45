"""Masks of visit frequencies."""

from __future__ import annotations

import torch
from torch import Tensor

from topomask.graph import Graph
from topomask.masks.walking import WalkingMask, WalkOperator, draw_seed
from topomask.ops.sparse_product import sddmm, spmm
from topomask.walks import Coupling, WalkFeatures
from topomask.walks.recipe import WalkRecipe, Walks
from topomask.walks.record import WalkRecord


class VisitMask(WalkingMask):
    r"""The overlap of the random walks from two nodes in O(N), an ad-hoc kernel without importance weights.

    .. math:: M = \Phi \Phi^\top, \qquad \Phi_{ic} = \frac{1}{n} \sum_{w=1}^{n} \sum_{l} f_l\,
        [\text{walker } w \text{ from } i \text{ is at } c \text{ after } l \text{ steps}]

    Walks are frozen; f is learnt. With f = 1, the default, :math:`\Phi_{ic}` is how often a walk from i visits c. In
    contrast to :class:`topomask.WalkMask`, visits are not divided by their probability, so M does not estimate a power
    series of the adjacency matrix. Signs of weights are ignored, and any graph works. Queries and keys share their
    walks, so that M is positive semidefinite.

    Args:
        graph: The graph, directed or not.
        num_walks, max_length, num_heads, halt_prob, coupling, shared_heads: As in :class:`topomask.WalkMask`, as are
            ``positive``, ``seed`` and ``save_walks``.
        shared_walks: Use the walks of queries for keys too. Otherwise :math:`M = \Phi_q \Phi_k^\top`, with separate
            walks, is neither symmetric nor positive semidefinite.
        normalize: Divide every row of Phi by its Euclidean norm, so that with shared walks the diagonal of M is 1.
        f: Initial modulation, [L + 1] or [H, L + 1]. Default: ones.
        walks: Walks already sampled, with ``weighting="visits"``: one, or (queries, keys) if they are not shared.

    Example:
        >>> import torch, topomask as tm
        >>> mask = tm.VisitMask(tm.path_graph(2), num_walks=1, max_length=2, seed=0)
        >>> mask.to_dense()
        tensor([[[5., 4.],
                 [4., 5.]]], grad_fn=<...>)

    References:
        Choromanski et al. (2022), random-walk graph-node kernels (GKAT). Reid et al. (2025), Eq. 21.
    """

    _decay = 1.0

    def __init__(
        self,
        graph: Graph | None = None,
        *,
        num_walks: int = 20,
        max_length: int = 10,
        num_heads: int = 1,
        halt_prob: float = 0.0,
        coupling: Coupling = "repelling",
        shared_walks: bool = True,
        shared_heads: bool = False,
        normalize: bool = False,
        f: Tensor | None = None,
        positive: bool = False,
        seed: int | None = None,
        walks: Walks | None = None,
        save_walks: bool = False,
    ) -> None:
        recipe = WalkRecipe(
            num_walks=num_walks,
            max_length=max_length,
            halt_prob=float(halt_prob),
            coupling=coupling,
            num_heads=num_heads,
            normalization=None,
            symmetric=True,
            shared_walks=shared_walks,
            shared_heads=shared_heads,
            seed=draw_seed() if seed is None else seed,
            weighting="visits",
        )
        super().__init__(graph, recipe, f, positive, walks, save_walks)
        self.normalize = normalize

    def _operator(self, graph: Graph, record: WalkRecord) -> WalkOperator:
        return VisitOperator(self, graph, record)


class VisitOperator(WalkOperator):
    """The overlap of visits, divided by the norms of rows if the mask normalises."""

    def __init__(self, mask: VisitMask, graph: Graph, record: WalkRecord) -> None:
        self._normalize = self._cancels_scale = mask.normalize
        super().__init__(mask, graph, record)

    def _values(self, walks: WalkFeatures) -> Tensor:
        values = super()._values(walks)
        if not self._normalize:
            return values
        # The norms are those of M itself: with larger ones, the magnitude would not dominate M.
        squares = walks.values(self._f).view(values.shape).double().square()
        ones = squares.new_ones(len(squares), walks._pattern.shape[1], 1)
        totals = spmm(walks._pattern, squares, ones)
        return (values * sddmm(walks._pattern, _inverse_roots(totals), ones)).to(values.dtype)

    def _dense_values(self, loads: Tensor) -> Tensor:
        values = super()._dense_values(loads)
        if not self._normalize:
            return values
        signed = values
        if self._absolute:
            signed = (self._f.to(values.dtype).unsqueeze(1) @ loads.to(values.dtype)).view(values.shape)
        totals = signed.double().square().sum(dim=-1, keepdim=True)
        return (values * _inverse_roots(totals)).to(values.dtype)


def _inverse_roots(totals: Tensor) -> Tensor:
    """Inverse norms of rows from sums of squares in float64, which holds the large slope of the root near 0.

    A row of zeros gives 1: the slope of the root at 0 is infinite.
    """
    return torch.where(totals > 0, totals, 1.0).rsqrt()
