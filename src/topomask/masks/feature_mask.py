"""What masks of sparse features have in common: the walks, the modulation, and every way to attend."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from topomask.graph import Graph
from topomask.masks import walk_checkpoint
from topomask.masks.base import Entries, Mask, next_structure, sparse_multiply
from topomask.masks.bound_walks import BoundWalks, Features, WalkRecipe, check_features
from topomask.masks.graph_mask import GraphMask
from topomask.masks.selected import SelectedMask
from topomask.modulation import Modulation
from topomask.ops.feature_attention import FeatureValues, PackedWeights, feature_attention, fits
from topomask.ops.pair_attention import TileWork
from topomask.ops.pair_values import pair_values
from topomask.ops.sparse_product import Pattern
from topomask.walks import WalkFeatures


class FeatureMask(GraphMask):
    r"""A mask of sparse features that frozen walks leave behind, with a modulation that is learnt.

    .. math:: M = \Phi_q \Phi_k^\top \quad \text{or} \quad M = \Phi_q

    A subclass says what the features are in :meth:`feature_values`.

    Args:
        graph: The graph.
        recipe: How walks are drawn.
        f: Initial modulation, [L + 1] or [H, L + 1]. Default: the powers of ``_decay``.
        positive: Keep f positive.
        features: Walks already sampled. Default: sampled here.
        save_walks: Store the walks in ``state_dict``.
    """

    _walks: BoundWalks
    _decay = 0.5

    def __init__(
        self,
        graph: Graph,
        recipe: WalkRecipe,
        f: Tensor | None,
        positive: bool,
        features: Features | None,
        save_walks: bool,
    ) -> None:
        super().__init__()
        self.num_heads = recipe.num_heads
        self.save_walks = save_walks
        self._settings = recipe
        self._bind(graph, features)
        if f is None:
            f = self._decay ** torch.arange(recipe.max_length + 1)
        self.modulation = Modulation(recipe.num_heads, recipe.max_length, f, positive, name="f")
        weight = self.modulation.weight
        if not weight.is_meta:
            self._move(weight.device, torch.promote_types(weight.dtype, self._walks.loads.dtype))

    @abstractmethod
    def feature_values(self, features: WalkFeatures, absolute: bool) -> Tensor:
        """The entries of Phi [P] on the pattern of some walks; with ``absolute``, numbers that dominate theirs."""

    @property
    def seed(self) -> int:
        """Seed of the walks."""
        return self._settings.seed

    @property
    def features(self) -> Features:
        """The walks of the queries, or (queries, keys) where keys have their own."""
        walks = self._walks
        return walks.query if walks.key is None or walks.key is walks.query else (walks.query, walks.key)

    @property
    def recipe(self) -> WalkRecipe:
        """All that decides the walks, apart from the graph."""
        return self._settings

    def sample(self, graph: Graph) -> Features:
        """Walks of this mask on another graph, for :meth:`on`; a data loader can do this ahead of time."""
        return self._settings.sample(graph)

    def resample(self, seed: int) -> None:
        """Draw new walks on the same graph."""
        loads = self._walks.loads
        settings = replace(self._settings, seed=seed)
        features = settings.sample(self.graph)
        self._settings = settings
        self._bind(self.graph, features)
        self._move(loads.device, loads.dtype)

    def on(self, graph: Graph, features: Any = None) -> Self:
        """The same parameters on another graph, with new walks or with ``features`` already sampled on it.

        Args:
            graph: The other graph, or a batch.
            features: What :meth:`sample` gave for it. Default: sampled here, with this mask's seed.
        """
        view = self._view()
        view._bind(graph, features)
        view._move(self._walks.loads.device, self._walks.loads.dtype)
        return view

    def _bind(self, graph: Graph, features: Features | BoundWalks | None = None) -> None:
        settings = self._settings
        if isinstance(features, BoundWalks):
            # Those of another mask of the same recipe on the same graph.
            walks = features
            check_features(walks.query, graph, settings)
        else:
            walks = self._bound(graph, settings.sample(graph) if features is None else features)
        super()._bind(graph)
        self._walks = walks
        self._probe = torch.empty(0, dtype=walks.loads.dtype, device=walks.loads.device)

    def _bound(self, graph: Graph, features: Features) -> BoundWalks:
        settings = self._settings
        wants_pair = settings.symmetric and not settings.shared_walks
        if isinstance(features, tuple) != wants_pair:
            raise ValueError(
                f"`features` must be {'a pair, of queries and of keys,' if wants_pair else 'one WalkFeatures'} for "
                f"symmetric={settings.symmetric} and shared_walks={settings.shared_walks}, as mask.sample(graph) gives."
            )
        query, key = features if isinstance(features, tuple) else (features, features)
        for part in (query, key):
            check_features(part, graph, settings)
        return BoundWalks(query, key if settings.symmetric else None, graph)

    def f(self) -> Tensor:
        """The modulation, [H, L + 1]."""
        return self.modulation().abs() if self._is_magnitude else self.modulation()

    def _is_positive(self) -> bool:
        """Whether nothing is negative, so that the mask, with its gradient, is its own magnitude."""
        if self._is_magnitude or self._walks.signed:
            return self._is_magnitude
        if self.modulation.positive or torch.compiler.is_compiling():
            return self.modulation.positive
        f = self.modulation().detach()
        return f.device.type == "cpu" and bool((f > 0).all())

    def magnitude(self) -> Self:
        """The same walks with absolute f and absolute loads."""
        return self if self._is_positive() else self._magnitude_view()

    def _values(self, absolute: bool) -> tuple[Tensor, Tensor | None]:
        walks = self._walks
        query = self.feature_values(walks.query, absolute)
        if walks.key is None:
            return query, None
        return query, query if walks.key is walks.query else self.feature_values(walks.key, absolute)

    def product(self) -> Callable[[Tensor], Tensor]:
        """Multiplication by M with the values of the features computed once."""
        query, key = self._values(self._is_magnitude)
        return lambda x: self._multiply(query, key, x)

    def _multiply(self, query: Tensor, key: Tensor | None, x: Tensor) -> Tensor:
        if self._walks.key is not None and key is not None:
            x = sparse_multiply(self._walks.key.pattern, key, x, self.num_heads, transpose=True)
        return sparse_multiply(self._walks.query.pattern, query, x, self.num_heads)

    def matmul(self, x: Tensor) -> Tensor:
        """Phi_q (Phi_k^T x)."""
        return self.product()(x)

    def rmatmul(self, x: Tensor) -> Tensor:
        """Phi_k (Phi_q^T x)."""
        query, key = self._values(self._is_magnitude)
        x = sparse_multiply(self._walks.query.pattern, query, x, self.num_heads, transpose=True)
        if self._walks.key is None or key is None:
            return x
        return sparse_multiply(self._walks.key.pattern, key, x, self.num_heads)

    def to_dense(self) -> Tensor:
        """M_hat, [H, N, N]."""
        query, key = self._values(self._is_magnitude)
        if self._walks.key is None or key is None:
            return self._walks.query.densify(query)
        # A sparse matrix times a dense one: O(N^2), where a dense product would take O(N^3).
        return sparse_multiply(self._walks.query.pattern, query, self._walks.key.densify(key).mT, self.num_heads)

    def pattern(self) -> Pattern:
        """Where walks of queries and keys meet; computed once for frozen walks."""
        return self._walks.pairs()

    def entries(self) -> Entries:
        """The values of M_hat where walks meet; kept while f does not change and no gradient is asked for."""
        return self._keep("entries", self._entries)

    def _entries(self) -> Entries:
        values = self._pair_values(self._is_magnitude)
        return Entries(self.pattern(), values, values if self._is_positive() else self._pair_values(absolute=True))

    def attend_pairs(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        magnitudes: bool,
        absolute: bool = False,
        normalize: bool = True,
        softmax: bool = False,
        is_key: Tensor | None = None,
    ) -> Tensor:
        """Attention over the entries of M_hat, which are formed on the way where that is faster than keeping them."""
        walks = self._walks
        kinds = {x.dtype for x in (q, self.modulation.weight, walks.loads)}
        on_the_way = walks.tile_work is not None and kinds == {torch.float32} and q.device.type == "cpu"
        if walks.key is None or absolute or not on_the_way:
            flags = {"absolute": absolute, "normalize": normalize, "softmax": softmax}
            return super().attend_pairs(q, k, v, magnitudes=magnitudes, is_key=is_key, **flags)
        patterns = (walks.query.pattern, walks.key.pattern)
        own = magnitudes and not self._is_positive()
        features: FeatureValues | PackedWeights
        if self._is_frozen() and fits(q):
            features = self._keep(f"packed {own}", lambda: PackedWeights(*patterns, self._feature_values(own)))
        else:
            features = self._feature_values(own)
        return feature_attention(*patterns, features, q, k, v, is_key=is_key, softmax=softmax, normalize=normalize)

    def _feature_values(self, own: bool) -> FeatureValues:
        """Values of the features of queries and keys, and those of their magnitude where they differ."""
        query, key = self._values(self._is_magnitude)
        sizes = self._values(absolute=True) if own else (None, None)
        assert key is not None
        return FeatureValues(query, key, *sizes)

    def _pair_values(self, absolute: bool) -> Tensor:
        query, key = self._values(absolute)
        if self._walks.key is None or key is None:
            return query
        return pair_values(self.pattern(), self._walks.query.pattern, self._walks.key.pattern, query, key)

    @property
    def refresh_cost(self) -> int:
        """Pairs of walks that meet, unless the entries are kept; twice where the magnitude has its own."""
        return 0 if self._is_frozen() else self._walks.num_triples * (1 if self._is_positive() else 2)

    @property
    def tile_work(self) -> TileWork | None:
        """The work of attention over pairs in tiles, from a sample of tiles."""
        return self._walks.tile_work

    @property
    def num_pairs_bound(self) -> int:
        """Pairs of walks that meet: at least the number of entries, and the work to compute them."""
        return self._walks.num_triples

    @property
    def num_pairs_estimate(self) -> int:
        """About how many entries there are, from a sample of rows."""
        return self._walks.num_pairs

    @property
    def product_cost(self) -> int:
        """Nonzeros of the features."""
        key = 0 if self._walks.key is None else self._walks.key.num_nonzeros
        return self._walks.query.num_nonzeros + key

    def select(self, query_nodes: Tensor | None, key_nodes: Tensor | None) -> Mask:
        """Rows of the features of queries and of keys."""
        query, key = self._walks.query, self._walks.key
        if key is None and key_nodes is not None:
            rows = self if query_nodes is None else self.select(query_nodes, None)
            return SelectedMask(rows, None, key_nodes)
        view = self._view()
        if query_nodes is not None:
            query = query.rows(query_nodes)
        if key is not None and key_nodes is not None:
            key = key.rows(key_nodes)
            view.num_keys = key.num_rows
            view._groups = None if self._groups is None else self._groups[key_nodes.to(self._groups.device)]
        walks = BoundWalks(query, key, self.graph if query_nodes is None else None)
        view._walks, view._structure, view._kept = walks, next_structure(), {}
        view.num_queries = query.num_rows
        return view

    def _move(self, device: torch.device, dtype: torch.dtype) -> None:
        self._walks = self._walks.to(device, dtype)
        # Walks never drop below float32, whatever the precision of the parameters.
        super()._move(device, self._walks.loads.dtype)

    def _describe(self) -> dict[str, Any]:
        return walk_checkpoint.describe(self._settings, self.graph, self._walks)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        stored = walk_checkpoint.write(self._describe(), self._walks if self.save_walks else None)
        destination.update({f"{prefix}{name}": tensor for name, tensor in stored.items()})

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        name = f"{prefix}walks"
        stored = {key: state_dict[key] for key in state_dict if key == name or key.startswith(f"{name}.")}
        rest = {key: value for key, value in state_dict.items() if key not in stored}
        super()._load_from_state_dict(rest, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        if name not in stored:
            missing_keys.append(name)
            return
        try:
            self._restore({key[len(prefix) :]: value for key, value in stored.items()})
        except ValueError as error:
            error_msgs.append(f"{name}: {error}")

    def _restore(self, stored: dict[str, Tensor]) -> None:
        """Take the walks that a state dict describes: those stored in it, or the same sampled again and verified."""
        recipe, features, wanted = walk_checkpoint.read(stored, self._settings, self.graph)
        previous = self._settings, self._walks
        self._settings = recipe
        try:
            self._bind(self.graph, features)
            if self._describe()["walks"] != wanted:
                raise ValueError(
                    "Sampling again did not give the walks of the checkpoint: it was saved with features of its own. "
                    "Save it with save_walks=True."
                )
        except ValueError:
            self._settings, self._walks = previous
            raise
        self._move(previous[1].loads.device, previous[1].loads.dtype)

    def extra_repr(self) -> str:
        """Shown when the module is printed."""
        s = self._settings
        return (
            f"{self.graph}, num_walks={s.num_walks}, max_length={s.max_length}, num_heads={s.num_heads}, "
            f"coupling={s.coupling!r}, seed={s.seed}"
        )
