"""Masks of graph random features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from topomask.graph import Graph, Normalization
from topomask.masks.walking import WalkingMask, WalkOperator, draw_seed
from topomask.ops.registration import has_values
from topomask.walks import Coupling, Prune
from topomask.walks.recipe import FeatureRecipe, WalkRecipe, Walks
from topomask.walks.record import WalkRecord


class WalkMask(WalkingMask):
    r"""A learnable power series of the adjacency matrix, estimated by graph random features in O(N).

    .. math:: \hat M = \Phi_q \Phi_k^\top, \qquad \Phi = \sum_l f_l\,\mathrm{load}_{\cdot\cdot l}, \qquad
        \mathbb{E}\,\hat M = \sum_k \alpha_k W^k, \quad \alpha = f * f

    Walks are frozen; the modulation f is learnt. With ``symmetric=False``, only queries walk, :math:`\hat M = \Phi` and
    :math:`\alpha = f`.

    With ``prune``, rows of powers of W are computed by pruned frontiers instead of walks
    (:func:`topomask.expand_features`), which has several times less error at equally many entries.
    ``prune="largest"`` draws nothing: one set of features serves queries, keys and all heads, the seed changes nothing,
    and :meth:`error_bound` certifies the mask. With ``symmetric=True``, :math:`\hat M = \Phi \Phi^\top` is then
    symmetric and positive semidefinite for every f; with ``symmetric=False``, :math:`\hat M = \Phi` is in general
    neither. ``prune="resample"`` draws like walks do, per head and ensemble, and is unbiased unless ``shared_walks``.

    Args:
        graph: The default graph; :meth:`on` takes any other.
        prune: ``"largest"`` or ``"resample"`` for pruned frontiers. Default: None, for random walks.
        width: For frontiers, entries of a row of one length at most. Default: 16.
        max_entries: For ``prune="largest"``, entries of a row over all lengths at most. Default: ``width``.
        num_walks: Walkers per node, head and ensemble. Default: 20.
        max_length: Longest walk L.
        num_heads: Heads; each has its own f, and its own walks unless ``shared_heads``.
        halt_prob: Probability of stopping before each step. Default: 0.
        coupling: ``"repelling"``, the default, ``"antithetic"`` or ``"iid"``, see :func:`topomask.sample_features`.
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
        prune: Prune | None = None,
        width: int | None = None,
        max_entries: int | None = None,
        num_walks: int | None = None,
        max_length: int = 10,
        num_heads: int = 1,
        halt_prob: float | None = None,
        coupling: Coupling | None = None,
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
        if shared_walks and prune == "largest":
            raise ValueError(
                "`shared_walks` is True, but prune='largest' draws nothing: one set of features serves queries and "
                "keys anyway. Leave it out."
            )
        of_walks = {"num_walks": num_walks, "halt_prob": halt_prob, "coupling": coupling}
        of_frontiers = {"width": width, "max_entries": max_entries}
        _refuse(of_frontiers if prune is None else of_walks, prune)
        common: dict[str, Any] = {
            "max_length": max_length,
            "num_heads": num_heads,
            "normalization": normalization,
            "symmetric": symmetric,
            "shared_walks": shared_walks,
            "shared_heads": shared_heads,
            # Nothing is drawn for the largest entries.
            "seed": seed if seed is not None else 0 if prune == "largest" else draw_seed(),
        }
        recipe: FeatureRecipe
        if prune is None:
            recipe = WalkRecipe(
                num_walks=20 if num_walks is None else num_walks,
                halt_prob=0.0 if halt_prob is None else float(halt_prob),
                coupling="repelling" if coupling is None else coupling,
                **common,
            )
        else:
            from topomask.walks.frontier_recipe import FrontierRecipe

            recipe = FrontierRecipe(
                prune=prune, width=16 if width is None else width, max_entries=max_entries, **common
            )
        super().__init__(graph, recipe, f, positive, walks, save_walks)
        if halt_prob and has_values(self.modulation.weight):
            from topomask.walks import theory

            theory.warn_if_variance_explodes(self.modulation().detach(), halt_prob)

    @property
    def symmetric(self) -> bool:
        """Whether keys walk too."""
        return self._recipe.symmetric

    def error_bound(self, graph: Graph | None = None) -> Tensor:
        r"""Bound the error of the mask, for ``prune="largest"``.

        With ``symmetric=False``, how far every row is from that of :math:`\sum_k f_k W^k`, see
        :meth:`topomask.WalkFeatures.error_bound`. With ``symmetric=True``, how far any entry of a row is from that of
        :math:`(\sum_l f_l W^l)^2`, before the entries are rounded.

        Args:
            graph: The graph. Default: the mask's own.

        Returns:
            Bounds in float64, [H, N].

        Example:
            >>> import topomask as tm
            >>> mask = tm.WalkMask(tm.grid_graph(4, 4), prune="largest", width=6, max_length=2)
            >>> mask.error_bound().shape
            torch.Size([1, 16])
        """
        self._follow()
        graph = self.graph_or(graph)
        record = self._own_record() if graph is self._graph else self._record(graph, None)
        f = self.f.detach()
        if record.key is None:
            return record.query.error_bound(f)
        if record.key is not record.query:
            raise ValueError(
                "The error of this mask has no bound, since its features are drawn. Build it with prune='largest'."
            )
        from topomask.walks.certificate import product_error

        return product_error(record.query, f, torch.tensor(graph.graph_index, device=f.device))

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


def _refuse(options: dict[str, Any], prune: Prune | None) -> None:
    """Raise a ValueError if options are given that belong to the other kind of features."""
    for name, value in options.items():
        if value is not None:
            why = "random walks have none" if prune is None else f"there are no walkers with prune={prune!r}"
            fix = "Pass prune='largest' too" if prune is None else "Leave it out, or pass prune=None for walks"
            raise ValueError(f"`{name}` is {value!r}, but {why}. {fix}.")
