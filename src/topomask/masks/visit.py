"""The mask of visit frequencies."""

from __future__ import annotations

import torch
from torch import Tensor

from topomask.graph import Graph
from topomask.masks.bound_walks import Features, WalkRecipe, draw_seed
from topomask.masks.feature_mask import FeatureMask
from topomask.ops.sparse_product import sddmm, spmm
from topomask.walks import Coupling, WalkFeatures


class VisitMask(FeatureMask):
    r"""How much the random walks from two nodes overlap: O(N), an ad-hoc kernel without importance weights.

    .. math:: M = \Phi \Phi^\top, \qquad \Phi_{ic} = \frac{1}{n} \sum_{w=1}^{n} \sum_{l} f_l\,
        [\text{walker } w \text{ from } i \text{ is at } c \text{ after } l \text{ steps}]

    Walks are frozen; f is learnt. With f = 1, the default, :math:`\Phi_{ic}` is how often a walk from i visits c. In
    contrast to :class:`topomask.WalkMask`, visits are not divided by their probability, so M estimates no power series
    of the adjacency matrix; signs of weights do not count, and any graph will do. Queries and keys share their walks,
    so that M is positive semidefinite.

    Args:
        graph: The graph, directed or not.
        num_walks: Walkers per node, head and ensemble.
        max_length: Longest walk L.
        num_heads: Heads; each has its own walks and its own f.
        halt_prob: Probability to stop before each step.
        coupling: ``"repelling"``, ``"antithetic"`` or ``"iid"``, see :func:`topomask.sample_features`.
        shared_walks: Let keys use the walks of queries. Otherwise :math:`M = \Phi_q \Phi_k^\top` with walks of their
            own, which is neither symmetric nor positive semidefinite.
        normalize: Divide every row of Phi by its Euclidean norm, so that the diagonal of M is 1 where walks are shared.
        f: Initial modulation, [L + 1] or [H, L + 1]. Default: ones.
        positive: Keep f positive.
        seed: Seed of the walks. Default: drawn from torch's generator, so that every mask walks differently.
        features: Walks already sampled, with ``weighting="visits"``: one, or (queries, keys) if they are not shared.
        save_walks: Store the walks in ``state_dict``. Otherwise it holds what is needed to sample them again.

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
        graph: Graph,
        num_walks: int = 20,
        max_length: int = 10,
        num_heads: int = 1,
        *,
        halt_prob: float = 0.0,
        coupling: Coupling = "repelling",
        shared_walks: bool = True,
        normalize: bool = False,
        f: Tensor | None = None,
        positive: bool = False,
        seed: int | None = None,
        features: Features | None = None,
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
            seed=draw_seed() if seed is None else seed,
            weighting="visits",
        )
        super().__init__(graph, recipe, f, positive, features, save_walks)
        self.normalize = normalize

    def feature_values(self, features: WalkFeatures, absolute: bool) -> Tensor:
        """The sum of visits, each times f of its step, over the norm of its row where that is asked for."""
        values = features.values(self.f().abs() if absolute else self.f())
        if not self.normalize:
            return values
        # The norms are those of the mask itself: larger ones would not give a magnitude that dominates it.
        squares = features.values(self.modulation()).square()
        ones = squares.new_ones(features.pattern.shape[1], 1)
        totals = spmm(features.pattern, squares, ones)
        # A row that vanishes has a norm of 0, and a root with infinite slope.
        scales = torch.where(totals > 0, totals, 1.0).rsqrt()
        return values * sddmm(features.pattern, scales, ones)
