"""The mask of graph random features."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any, Self

import torch
from torch import Tensor

from topomask import theory
from topomask.graph import Graph, Normalization
from topomask.masks.base import Entries, Mask, next_structure, sparse_multiply
from topomask.masks.bound_walks import BoundWalks, Features, WalkRecipe, check_features
from topomask.masks.graph_mask import GraphMask
from topomask.masks.selected import SelectedMask
from topomask.modulation import Modulation
from topomask.ops.feature_attention import FeatureValues, PackedWeights, feature_attention, fits
from topomask.ops.pair_attention import TileWork
from topomask.ops.pair_values import pair_values
from topomask.ops.sparse_product import Pattern
from topomask.walks import SAMPLER_VERSION, Coupling, WalkFeatures


class WalkMask(GraphMask):
    r"""A learnable power series of the adjacency matrix, estimated by graph random features in O(N).

    .. math:: \hat M = \Phi_q \Phi_k^\top, \qquad \Phi = \sum_l f_l\,\mathrm{load}_{\cdot\cdot l}, \qquad
        \mathbb{E}\,\hat M = \sum_k \alpha_k W^k, \quad \alpha = f * f

    Walks are frozen; the modulation f is learnt. With ``symmetric=False`` only queries walk, :math:`\hat M = \Phi` and
    :math:`\alpha = f`.

    Args:
        graph: The graph.
        num_walks: Walkers per node, head and ensemble.
        max_length: Longest walk L.
        num_heads: Heads; each has its own walks and its own f.
        halt_prob: Probability to stop before each step.
        coupling: ``"repelling"``, ``"antithetic"`` or ``"iid"``, see :func:`topomask.sample_features`.
        normalization: ``"sym"``, ``"row"`` or ``"none"``, see :meth:`topomask.Graph.adjacency`.
        symmetric: Whether keys walk too. Symmetric features need a symmetric W.
        shared_walks: Let keys use the walks of queries, as the paper does. The diagonal is then biased upwards.
        f: Initial modulation, [L + 1] or [H, L + 1]. Default: :math:`2^{-l}`.
        positive: Keep f positive.
        seed: Seed of the walks. Default: drawn from torch's generator, so that every mask walks differently.
        features: Walks already sampled: those of the queries, or (queries, keys).
        save_walks: Store the walks in ``state_dict``. Otherwise it holds what is needed to sample them again.

    Example:
        >>> import torch, topomask as tm
        >>> mask = tm.WalkMask(tm.grid_graph(8, 8), num_heads=2, seed=0)
        >>> (mask @ torch.randn(2, 64, 16)).shape
        torch.Size([2, 64, 16])

    References:
        Reid et al. (2025), Alg. 1 and Alg. 2.
    """

    _walks: BoundWalks

    def __init__(
        self,
        graph: Graph,
        num_walks: int = 20,
        max_length: int = 10,
        num_heads: int = 1,
        *,
        halt_prob: float = 0.0,
        coupling: Coupling = "repelling",
        normalization: Normalization | None = None,
        symmetric: bool = True,
        shared_walks: bool = False,
        f: Tensor | None = None,
        positive: bool = False,
        seed: int | None = None,
        features: Features | None = None,
        save_walks: bool = False,
    ) -> None:
        super().__init__()
        if shared_walks and not symmetric:
            raise ValueError("`shared_walks` is True, but keys do not walk when symmetric=False. Leave it out.")
        if seed is None:
            seed = int(torch.randint(2**62, (), device="cpu"))
        self.num_heads = num_heads
        self.save_walks = save_walks
        self._settings = WalkRecipe(
            num_walks, max_length, float(halt_prob), coupling, num_heads, normalization, symmetric, shared_walks, seed
        )
        self._bind(graph, features)
        self.modulation = Modulation(num_heads, max_length, f, positive, name="f")
        weight = self.modulation.weight
        if not weight.is_meta:
            self._move(weight.device, torch.promote_types(weight.dtype, self._walks.loads.dtype))
            theory.warn_if_variance_explodes(self.modulation().detach(), halt_prob)

    @property
    def symmetric(self) -> bool:
        """Whether keys walk too."""
        return self._settings.symmetric

    @property
    def seed(self) -> int:
        """Seed of the walks."""
        return self._settings.seed

    @property
    def features(self) -> Features:
        """The walks of the queries, or (queries, keys) where keys have their own."""
        walks = self._walks
        return walks.query if walks.key is None or walks.key is walks.query else (walks.query, walks.key)

    def sample(self, graph: Graph) -> Features:
        """Walks of this mask on another graph, for :meth:`on`; a data loader can do this ahead of time."""
        return self._settings.sample(graph)

    def resample(self, seed: int) -> None:
        """Draw new walks on the same graph."""
        loads = self._walks.loads
        settings = WalkRecipe(**(asdict(self._settings) | {"seed": seed}))
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

    def _bind(self, graph: Graph, features: Features | None = None) -> None:
        settings = self._settings
        normalization = graph.check_normalization(settings.normalization)
        if settings.symmetric and (graph.directed or normalization == "row"):
            raise ValueError(
                f"Symmetric features estimate sums of W^k (W^T)^l, which is a power series only for a symmetric W, but "
                f"the graph is {'directed' if graph.directed else 'undirected'} and `normalization` is "
                f"{normalization!r}. Pass symmetric=False, which estimates sum_k f_k W^k on any graph."
            )
        if features is None:
            features = settings.sample(graph)
        wants_pair = settings.symmetric and not settings.shared_walks
        if isinstance(features, tuple) != wants_pair:
            raise ValueError(
                f"`features` must be {'a pair, of queries and of keys,' if wants_pair else 'one WalkFeatures'} for "
                f"symmetric={settings.symmetric} and shared_walks={settings.shared_walks}, as mask.sample(graph) gives."
            )
        query, key = features if isinstance(features, tuple) else (features, features)
        for part in (query, key):
            check_features(part, graph, settings, normalization)
        super()._bind(graph)
        self._walks = BoundWalks(query, key if settings.symmetric else None, graph)
        self._probe = torch.empty(0, dtype=query.loads.dtype, device=query.loads.device)

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

    def magnitude(self) -> WalkMask:
        """The same walks with absolute f and absolute loads."""
        return self if self._is_positive() else self._magnitude_view()

    def _values(self, absolute: bool) -> tuple[Tensor, Tensor | None]:
        f = self.f().abs() if absolute else self.f()
        walks = self._walks
        query = walks.query.values(f, absolute=absolute)
        if walks.key is None:
            return query, None
        return query, query if walks.key is walks.query else walks.key.values(f, absolute=absolute)

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
        walks = self._walks
        return asdict(self._settings) | {
            "sampler_version": SAMPLER_VERSION,
            "graph": self.graph.fingerprint,
            "walks": [walks.query.fingerprint, "" if walks.key is None else walks.key.fingerprint],
        }

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        text = json.dumps(self._describe(), sort_keys=True).encode()
        destination[f"{prefix}walks"] = torch.tensor(list(text), dtype=torch.uint8)
        if self.save_walks:
            query, key = self._walks.query, self._walks.key
            sides = {"query": query} | ({} if key is None or key is query else {"key": key})
            for side, features in sides.items():
                for name, tensor in features.state().items():
                    destination[f"{prefix}walks.{side}.{name}"] = tensor

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
        stored = {key: state_dict[key] for key in state_dict if key.startswith(f"{name}.")}
        rest = {key: value for key, value in state_dict.items() if key != name and key not in stored}
        super()._load_from_state_dict(rest, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        if name not in state_dict:
            missing_keys.append(name)
            return
        try:
            text = bytes(state_dict[name].to("cpu", torch.uint8).flatten().tolist())
            self._restore(text, {k[len(name) + 1 :]: v for k, v in stored.items()})
        except ValueError as error:
            error_msgs.append(f"{name}: {error}")

    def _restore(self, text: bytes, stored: dict[str, Tensor]) -> None:
        """Take the walks that a state dict describes: those stored in it, or the same sampled again and verified."""
        try:
            described = json.loads(text)
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(
                f"The description of the walks cannot be read ({error}). Load an intact checkpoint."
            ) from None
        names = {field.name for field in fields(WalkRecipe)} | {"graph", "walks", "sampler_version"}
        if not isinstance(described, dict) or set(described) != names:
            raise ValueError("The description of the walks is not complete. Load an intact checkpoint.")
        wanted_graph, wanted_walks = described.pop("graph"), described.pop("walks")
        version = described.pop("sampler_version")
        settings = WalkRecipe(**described)
        if settings.symmetric != self.symmetric:
            raise ValueError(f"The checkpoint has symmetric={settings.symmetric}. Build the mask with the same.")
        if (settings.num_heads, settings.max_length) != (self._settings.num_heads, self._settings.max_length):
            raise ValueError(
                f"The checkpoint has num_heads={settings.num_heads} and max_length={settings.max_length}. "
                "Build the mask with the same."
            )
        if wanted_graph != self.graph.fingerprint:
            raise ValueError(
                "The checkpoint was made on another graph. Build the mask on the same graph, load, and then call "
                "mask.on(new_graph); or delete the key 'walks' from the state dict and load with strict=False to keep "
                "this mask's own walks."
            )
        features: Features | None = None
        if stored:
            expected = ("query", "key") if settings.symmetric and not settings.shared_walks else ("query",)
            sides = [
                WalkFeatures.from_state({k[len(side) + 1 :]: v for k, v in stored.items() if k.startswith(f"{side}.")})
                for side in expected
            ]
            features = (sides[0], sides[1]) if len(sides) == 2 else sides[0]
        elif version != SAMPLER_VERSION:
            raise ValueError(
                f"The walks were sampled by version {version} of the sampler, and this is version {SAMPLER_VERSION}. "
                "Save the checkpoint with save_walks=True where it was made."
            )
        previous = self._settings, self._walks
        self._settings = settings
        try:
            self._bind(self.graph, features)
            if self._describe()["walks"] != wanted_walks:
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
            f"coupling={s.coupling!r}, symmetric={s.symmetric}, seed={s.seed}"
        )
