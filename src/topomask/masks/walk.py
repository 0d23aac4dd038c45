"""Masks of graph random features."""

from __future__ import annotations

from torch import Tensor

from topomask.graph import Graph, Normalization
from topomask.masks.walking import WalkingMask, WalkOperator, draw_seed
from topomask.ops.registration import has_values
from topomask.walks import Coupling
from topomask.walks.recipe import WalkRecipe, Walks
from topomask.walks.record import WalkRecord


class WalkMask(WalkingMask):
    r"""A learnable power series of the adjacency matrix, estimated by graph random features in O(N).

    .. math:: \hat M = \Phi_q \Phi_k^\top, \qquad \Phi = \sum_l f_l\,\mathrm{load}_{\cdot\cdot l}, \qquad
        \mathbb{E}\,\hat M = \sum_k \alpha_k W^k, \quad \alpha = f * f

    Walks are frozen; the modulation f is learnt. With ``symmetric=False``, only queries walk, :math:`\hat M = \Phi` and
    :math:`\alpha = f`.

    Args:
        graph: The default graph; :meth:`on` takes any other.
        num_walks: Walkers per node, head and ensemble.
        max_length: Longest walk L.
        num_heads: Heads; each has its own f, and its own walks unless ``shared_heads``.
        halt_prob: Probability of stopping before each step.
        coupling: ``"repelling"``, ``"antithetic"`` or ``"iid"``, see :func:`topomask.sample_features`.
        normalization: ``"sym"``, ``"row"`` or ``"none"``, see :meth:`topomask.Graph.adjacency`.
        symmetric: Whether keys walk too. Symmetric features need a symmetric W.
        shared_walks: Use the walks of queries for keys too, as the paper does. This biases the diagonal upwards.
        shared_heads: Use the same walks for all heads, sampled and stored once.
        f: Initial modulation, [L + 1] or [H, L + 1]. Default: :math:`2^{-l}`.
        positive: Keep f positive.
        seed: Seed of the walks. Default: drawn from torch's generator, so that every mask has its own walks.
        walks: Walks already sampled on the graph: those of the queries, or (queries, keys).
        save_walks: Store the walks in ``state_dict``. Otherwise it stores what is needed to sample them again.

    Example:
        >>> import torch, topomask as tm
        >>> mask = tm.WalkMask(tm.grid_graph(8, 8), num_heads=2, seed=0)
        >>> (mask @ torch.randn(2, 64, 16)).shape
        torch.Size([2, 64, 16])

    References:
        Reid et al. (2025), Alg. 1 and Alg. 2.
    """

    _shown = (*WalkingMask._shown, "symmetric")

    def __init__(
        self,
        graph: Graph | None = None,
        *,
        num_walks: int = 20,
        max_length: int = 10,
        num_heads: int = 1,
        halt_prob: float = 0.0,
        coupling: Coupling = "repelling",
        normalization: Normalization | None = None,
        symmetric: bool = True,
        shared_walks: bool = False,
        shared_heads: bool = False,
        f: Tensor | None = None,
        positive: bool = False,
        seed: int | None = None,
        walks: Walks | None = None,
        save_walks: bool = False,
    ) -> None:
        if shared_walks and not symmetric:
            raise ValueError("`shared_walks` is True, but with symmetric=False keys have no walks. Leave it out.")
        recipe = WalkRecipe(
            num_walks=num_walks,
            max_length=max_length,
            halt_prob=float(halt_prob),
            coupling=coupling,
            num_heads=num_heads,
            normalization=normalization,
            symmetric=symmetric,
            shared_walks=shared_walks,
            shared_heads=shared_heads,
            seed=draw_seed() if seed is None else seed,
        )
        super().__init__(graph, recipe, f, positive, walks, save_walks)
        if halt_prob and has_values(self.modulation.weight):
            from topomask.walks import theory

            theory.warn_if_variance_explodes(self.modulation().detach(), halt_prob)

    @property
    def symmetric(self) -> bool:
        """Whether keys walk too."""
        return self._recipe.symmetric

    def _check_graph(self, graph: Graph) -> None:
        normalization = graph.check_normalization(self._recipe.normalization)
        if self._recipe.symmetric and (graph.directed or normalization == "row"):
            raise ValueError(
                f"Symmetric features estimate sums of W^k (W^T)^l, a power series only if W is symmetric, but "
                f"the graph is {'directed' if graph.directed else 'undirected'} and `normalization` is "
                f"{normalization!r}. Pass symmetric=False, which estimates sum_k f_k W^k on any graph."
            )

    def _operator(self, graph: Graph, record: WalkRecord) -> WalkOperator:
        return WalkOperator(self, graph, record)
