"""Masks of walk features: the base class and its operator."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor

from topomask.graph import Graph
from topomask.graph.records import as_traced, find_record, on_device
from topomask.masks.entries import Entries, PairSums, attend_entries
from topomask.masks.mask import Mask, SeededModule
from topomask.masks.operator import Cost, Operator, once
from topomask.ops.derived import plainly
from topomask.ops.pair_attention import TileWork
from topomask.ops.pair_values import pair_values
from topomask.ops.quotient import Attended
from topomask.ops.registration import fake_mode, has_values
from topomask.ops.sparse_heads import densify, join_heads, multiply
from topomask.walks import checkpoint
from topomask.walks.features import WalkFeatures
from topomask.walks.modulation import Modulation
from topomask.walks.recipe import FeatureRecipe, Walks
from topomask.walks.record import WalkCounts, WalkRecord

if TYPE_CHECKING:
    from topomask.ops.feature_attention import FeatureValues, PackedWeights


def draw_seed() -> int:
    """Draw a seed from torch's generator."""
    with plainly():
        return int(torch.randint(2**62, (), device="cpu"))


class WalkingMask(SeededModule, Mask):
    r"""A mask made of sparse features of frozen walks, with a learnt modulation.

    .. math:: M = \Phi_q \Phi_k^\top \quad \text{or} \quad M = \Phi_q

    The operator of a subclass defines the features. Arguments are those of :class:`topomask.WalkMask`; by default, f
    starts as the powers of ``_decay``.
    """

    _decay = 0.5
    _shown: tuple[str, ...] = ("num_walks", "prune", "width", "max_length", "num_heads", "coupling", "seed")

    def __init__(
        self,
        graph: Graph | None,
        recipe: FeatureRecipe,
        f: Tensor | None,
        positive: bool,
        walks: Walks | None,
        save_walks: bool,
    ) -> None:
        super().__init__(graph, recipe.num_heads)
        if walks is not None and graph is None:
            raise ValueError("`walks` was given without `graph`. Pass the graph that the walks were sampled on.")
        self.save_walks = save_walks
        if f is None:
            f = self._decay ** torch.arange(recipe.max_length + 1)
        self.modulation = Modulation(recipe.num_heads, recipe.max_length, f, positive, name="f")
        self._recipe = recipe.shared()
        self._given = walks
        self._default: WalkRecord | None = None
        self._bind()
        self._offer_seed()

    @abstractmethod
    def _operator(self, graph: Graph, record: WalkRecord) -> WalkOperator:
        """Return the operator with the current values of the parameters."""

    def _check_graph(self, graph: Graph) -> None:
        """Raise if the mask does not support a graph."""

    @property
    def f(self) -> Tensor:
        """Return the modulation, [H, L + 1]."""
        return self.modulation()

    @property
    def seed(self) -> int:
        """Seed of the walks."""
        return self.recipe.seed

    @property
    def recipe(self) -> FeatureRecipe:
        """The settings that determine the walks on a graph."""
        self._follow()
        return self._recipe

    @property
    def _own_seed(self) -> int:
        return self._recipe.seed

    def _take_seed(self, seed: int) -> None:
        # Given walks do not depend on the seed.
        if self._given is None and self._recipe.is_random:
            self.resample(seed)

    @property
    def walks(self) -> Walks:
        """The walks on the default graph: those of the queries, or (queries, keys) if keys have their own."""
        self._follow()
        record = self._own_record()
        query, key = record.query, record.key
        return query if key is None or key is query else (query, key)

    def sample(self, graph: Graph) -> Walks:
        """Sample walks on a graph, to pass to :meth:`on`. A data loader can do this ahead of time."""
        graph = self.graph_or(graph)
        self._check_graph(graph)
        return self.recipe.sample(graph)

    def resample(self, seed: int) -> None:
        """Draw new walks, on the default graph and on all others."""
        if not self._recipe.is_random:
            raise ValueError(
                "prune='largest' draws nothing: it keeps the largest entries, whatever the seed. Build the mask with "
                "prune='resample' or prune=None for features that can be drawn again."
            )
        self._take(self._graph, replace(self._recipe, seed=seed).shared(), None)
        self._offer_seed()

    def on(self, graph: Graph | None = None, walks: Any = None) -> Operator:
        """Return the operator on a graph, with the current values of the parameters.

        Args:
            graph: The graph, or a batch of graphs. Default: the mask's own.
            walks: What :meth:`sample` returned for it. Default: sampled once per graph, with this mask's seed.
        """
        self._follow()
        if graph is None and walks is None:
            graph, record = self.graph_or(None), self._own_record()
        else:
            graph = self.graph_or(graph)
            record = self._record(graph, walks)
        return self._keep(record, lambda: self._operator(graph, record))

    def _own_record(self) -> WalkRecord:
        # Compiled code reads the record from an attribute, so new walks do not cause recompilation.
        if fake_mode() is not None or (self._default is None and torch.compiler.is_compiling()):
            return self._record(self.graph_or(None), self._given)
        if self._default is None:
            self._default = self._record(self.graph_or(None), self._given)
        return self._default

    def _record(self, graph: Graph, walks: Any) -> WalkRecord:
        dtype, device = self.kind
        if walks is None:
            if not torch.compiler.is_compiling():
                self._check_graph(graph)
            return find_record(graph, self._recipe, device, dtype)
        self._check_graph(graph)
        return as_traced(_record_of(self._recipe, graph, walks, device, dtype))

    def _bind(self) -> None:
        """Find the walks on the default graph now, in the precision of the mask."""
        self._default = None
        if self._graph is not None and not self.modulation.weight.is_meta:
            self._own_record()

    def _take(self, graph: Graph | None, recipe: FeatureRecipe, walks: Walks | None) -> None:
        """Use another graph, recipe or given walks. Nothing changes if that fails."""
        before = self._graph, self._recipe, self._given
        self._graph, self._recipe, self._given = graph, recipe, walks
        try:
            self._bind()
        except ValueError:
            self._graph, self._recipe, self._given = before
            self._bind()
            raise

    def _move_to(self, graph: Graph | None) -> None:
        self._take(graph, self._recipe, None)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self._bind()
        return self

    def _state(self) -> list[Tensor]:
        return [self.modulation.weight]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the record, which belongs to the graph."""
        return super().__getstate__() | {"_default": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._recipe = self._recipe.shared()
        self._bind()

    def get_extra_state(self) -> Tensor:
        """Return what a checkpoint needs to restore the walks."""
        walks = None if self._graph is None or self.modulation.weight.is_meta else self.walks
        return checkpoint.write(self.recipe, self._graph, walks, self.save_walks)

    def set_extra_state(self, state: Any) -> None:
        """Restore the walks of a checkpoint: those stored in it, or the same walks sampled again and verified."""
        recipe, walks, wanted = checkpoint.read(state, self._recipe, self._graph)
        before = self._recipe, self._given
        self._take(self._graph, recipe.shared(), walks)
        self._offer_seed()
        if self._graph is None or self.modulation.weight.is_meta or not wanted:
            return
        found = self.walks if isinstance(self.walks, tuple) else (self.walks,)
        if [side.fingerprint for side in found] != wanted:
            self._take(self._graph, *before)
            self._offer_seed()
            raise ValueError(
                "Sampling again did not reproduce the walks of the checkpoint, since they were given to the saved "
                "mask. Save it again with save_walks=True."
            )

    def extra_repr(self) -> str:
        """Settings shown when the module is printed."""
        hidden = () if self._recipe.is_random else ("seed",)
        shown = [name for name in self._shown if hasattr(self._recipe, name) and name not in hidden]
        return ", ".join([str(self._graph), *(f"{name}={getattr(self._recipe, name)!r}" for name in shown)])


def _record_of(
    recipe: FeatureRecipe, graph: Graph, walks: Walks, device: torch.device, dtype: torch.dtype
) -> WalkRecord:
    """Return the record of given walks, computed once for all layers that are given them."""
    owner, *others = walks if isinstance(walks, tuple) else (walks,)
    # Graphs and walks are compared by identity.
    made_of = (graph, device, dtype, recipe.kind, *others)
    last = getattr(owner, "_last_record", None)
    if last is not None and last[0] == made_of:
        return last[1]
    with plainly(), torch.device("cpu"):
        record = on_device(device, lambda place: recipe.record_of(graph, walks, place, dtype))
    object.__setattr__(owner, "_last_record", (made_of, record))
    return record


class _Features(NamedTuple):
    """The entries of Phi for queries and keys, [V, P]; None for keys if only queries walk."""

    query: Tensor
    key: Tensor | None


class WalkOperator(Operator):
    """The product of the features of queries and keys, or the features of queries alone."""

    # Whether entries do not depend on the scale of f.
    _cancels_scale: bool = False

    def __init__(self, mask: WalkingMask, graph: Graph, record: WalkRecord) -> None:
        super().__init__(mask, graph)
        self._record = record
        self._f = mask.f
        if not self._cancels_scale and self._widen(self._f):
            self._f = self._f.double()
        self._f_is_positive = mask.modulation.positive
        self._absolute = False
        # Now, so that layers that share the operator share the features; on small graphs, when they are needed.
        self._evaluated = None if record.dense is not None else self._evaluate()

    @property
    def _features(self) -> _Features:
        return self._once("features", self._evaluate) if self._evaluated is None else self._evaluated

    def _evaluate(self) -> _Features:
        query, key = self._record.query, self._record.key
        values = self._values(query)
        return _Features(values, None if key is None else values if key is query else self._values(key))

    def _values(self, walks: WalkFeatures) -> Tensor:
        """Return the entries of Phi, [V, P]: sums of loads times f, or of their absolute values."""
        f = self._f.abs() if self._absolute else self._f
        return torch.atleast_2d(walks.values(f, absolute=self._absolute))

    def _dense_values(self, loads: Tensor) -> Tensor:
        """Return Phi, [H, R, N], from dense loads."""
        f, loads = (self._f.abs(), loads.abs()) if self._absolute else (self._f, loads)
        dtype = torch.promote_types(f.dtype, loads.dtype)
        query = self._record.query
        return (f.to(dtype).unsqueeze(1) @ loads.to(dtype)).view(self.num_heads, query.num_rows, query.num_columns)

    def magnitude(self) -> WalkOperator:
        """The same walks with absolute f and absolute loads."""
        return self if self._is_positive() else self._once("magnitude", self._magnitude)

    def _magnitude(self) -> WalkOperator:
        other = self._copy(_absolute=True)
        other._evaluated = None if self._evaluated is None else other._evaluate()
        return other

    def _is_positive(self) -> bool:
        """Whether nothing is negative, so that the operator is its own magnitude, gradient included."""
        if self._absolute or self._record.signed:
            return self._absolute
        if self._f_is_positive or not has_values(self._f):
            return self._f_is_positive
        return self._once("positive", lambda: self._f.device.type == "cpu" and bool((self._f.detach() > 0).all()))

    def matmul(self, x: Tensor) -> Tensor:
        """Phi_q (Phi_k^T x)."""
        query, key = self._features
        if self._record.key is not None and key is not None:
            x = multiply(self._record.key_pattern, key, x, self.num_heads, transpose=True)
        return multiply(self._record.query_pattern, query, x, self.num_heads)

    def rmatmul(self, x: Tensor) -> Tensor:
        """Phi_k (Phi_q^T x)."""
        query, key = self._features
        x = multiply(self._record.query_pattern, query, x, self.num_heads, transpose=True)
        if self._record.key is None or key is None:
            return x
        return multiply(self._record.key_pattern, key, x, self.num_heads)

    def to_dense(self) -> Tensor:
        """M_hat, [H, N_q, N_k]."""
        record = self._record
        if record.dense is not None:
            query = self._dense_values(record.dense.query)
            if record.dense.key is None:
                return query
            shared = record.dense.key is record.dense.query
            return query @ (query if shared else self._dense_values(record.dense.key)).mT
        query, key = self._features
        size = self.num_heads, record.query.num_rows, record.query.num_columns
        if record.key is None or key is None:
            return densify(record.query_pattern, query, *size)
        keys = densify(record.key_pattern, key, self.num_heads, record.key.num_rows, record.key.num_columns)
        # A sparse matrix times a dense one: O(N^2) instead of O(N^3).
        return multiply(record.query_pattern, query, keys.mT, self.num_heads)

    @once
    def entries(self) -> Entries:
        """The entries of M_hat where walks meet."""
        values, magnitude = self._pair_values(), self.magnitude()
        return Entries(self._record.pairs(), values, values if magnitude is self else magnitude._pair_values())

    def _pair_values(self) -> Tensor:
        record, (query, key) = self._record, self._features
        if record.key is None or key is None:
            return query
        return pair_values(record.pairs(), record.query_pattern, record.key_pattern, query, key)

    def attend_pairs(self, q: Tensor, k: Tensor, v: Tensor, sums: PairSums, is_key: Tensor | None = None) -> Attended:
        """Attention over the entries of M_hat, computed on the fly if that is faster than storing them."""
        record = self._record
        kinds = {x.dtype for x in (q, self._features.query)}
        on_the_fly = record.counts.tiles is not None and kinds == {torch.float32} and q.device.type == "cpu"
        if record.key is None or sums.absolute or not on_the_fly:
            return attend_entries(self.entries(), self.num_heads, q, k, v, sums, is_key)
        # Imported here, since many masks never use it.
        from topomask.ops.feature_attention import PackedWeights, feature_attention, fits

        patterns = (record.query_pattern, record.key_pattern)
        separate = sums.magnitudes and not self._is_positive()
        features: FeatureValues | PackedWeights
        if self._is_kept and fits(q):
            features = self._once(
                ("packed", separate), lambda: PackedWeights(*patterns, self._feature_values(separate))
            )
        else:
            features = self._feature_values(separate)
        shape = (*q.shape[:3], v.shape[-1])
        sizes = (len(pattern.row_ptr) - 1 for pattern in patterns)
        (q, k, v), is_key = join_heads((q, k, v), is_key, self.num_heads, *sizes)
        out, total = feature_attention(
            *patterns, features, q, k, v, is_key=is_key, softmax=sums.softmax, normalize=sums.normalize
        )
        return Attended(out.reshape(shape), total)

    def _feature_values(self, separate_magnitudes: bool) -> FeatureValues:
        from topomask.ops.feature_attention import FeatureValues

        query, key = self._features
        assert key is not None
        magnitudes = self.magnitude()._features if separate_magnitudes else (None, None)
        return FeatureValues(query, key, *magnitudes)

    def select(self, query_nodes: Tensor | None, key_nodes: Tensor | None) -> Operator:
        """Rows of the features of queries and of keys."""
        if torch.compiler.is_compiling():
            # The number of entries in these rows is unknown.
            return super().select(query_nodes, key_nodes)
        if torch.is_inference_mode_enabled():
            # Inference tensors have no derivative, which a transposed product may need.
            with plainly():
                return self.select(query_nodes, key_nodes)
        record = self._record
        if record.key is None and key_nodes is not None:
            rows = self if query_nodes is None else self.select(query_nodes, None)
            return Operator.select(rows, None, key_nodes)
        with plainly():
            selected = record.rows(query_nodes, key_nodes)
        other = self._copy(_is_kept=False, _record=selected)
        other._evaluated = other._evaluate()
        other.num_queries = other._record.query.num_rows
        if other._record.key is not None:
            other.num_keys = other._record.key.num_rows
        if key_nodes is not None and self.key_groups is not None:
            other.key_groups = self.key_groups[key_nodes.to(self.device)]
        return other

    def cost(self) -> Cost:
        """The cost from the nonzeros of the features and the pairs of walks that meet."""
        separate = not self._is_positive()
        if torch.compiler.is_compiling():
            return self._cost(self._record.rough_counts, separate)
        # Apart from these, the cost is the same for all operators on a record.
        costs, key = self._record.costs, (self.num_heads, self._is_kept, separate)
        if key not in costs:
            costs[key] = self._cost(self._record.counts, separate)
        return costs[key]

    def _cost(self, counts: WalkCounts, separate: bool) -> Cost:
        times, tiles = self.num_heads // self._record.query.num_heads, counts.tiles
        product = times * counts.nonzeros
        return Cost(
            product=product,
            dense=product * self.num_keys,
            refresh=0 if self._is_kept else times * counts.triples * (2 if separate else 1),
            pairs=times * counts.pairs,
            max_pairs=times * counts.triples,
            tiles=None if tiles is None else TileWork(times * tiles.keys, times * tiles.alone),
        )
