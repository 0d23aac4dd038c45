"""Weighted sums of masks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from topomask.graph import Graph
from topomask.masks.base import MAX_KEPT_ENTRIES, Entries, Mask, Normalizer
from topomask.masks.composition import Union, check_masks, common_heads, common_normalizer, common_size, unite
from topomask.masks.part_weights import PartWeights, Weight
from topomask.ops.pair_attention import TileWork
from topomask.ops.sparse_product import Pattern


class SumMask(Mask):
    r"""A weighted sum of masks, each with its own fast product.

    .. math:: M^{(h)} = \sum_p a_{ph}\, M_p^{(h)}

    A product takes the time of the parts' products together. Where all parts are sparse, so is the sum, on the union of
    their patterns. ``a * first + second``, ``first - second`` and ``-first`` make such sums with fixed weights; a sum
    of sums is one sum.

    Args:
        masks: The parts, for the same queries and keys, and on the same batch of graphs. Parts of one head serve
            every head of the others.
        weights: :math:`a`, [P] or [P, H] for P parts, or a list with one number or tensor [H] per part. An
            ``nn.Parameter`` is learnt, a tensor with a gradient of its own is used as it is, any other tensor is a
            buffer, and numbers are constants. Default: a parameter of ones, [P, H].

    Example:
        >>> import torch, topomask as tm
        >>> near = tm.WalkMask(tm.grid_graph(8, 8), max_length=2, num_heads=4, seed=0)
        >>> everywhere = tm.LowRankMask(torch.ones(64, 1))
        >>> mask = tm.SumMask([near, everywhere])
        >>> [tuple(weight.shape) for weight in mask.weights()]
        [(4,), (4,)]
        >>> (near - 0.1 * everywhere).num_heads
        4
    """

    def __init__(self, masks: Sequence[Mask], weights: Tensor | Sequence[Any] | None = None) -> None:
        super().__init__()
        masks = list(masks)
        check_masks(masks, "masks")
        if weights is None:
            device = next((x.device for mask in masks for x in mask._state()), None)
            weights = nn.Parameter(torch.ones(len(masks), common_heads(masks, "masks"), device=device))
        self.weights = PartWeights(weights, len(masks))
        # The magnitude of a sum has absolute weights, so it stays a part of its own.
        sums = [mask if isinstance(mask, SumMask) and not mask._is_magnitude else None for mask in masks]
        self.weights.flatten([None if inner is None else inner.weights for inner in sums])
        parts: list[Mask] = []
        for mask, inner in zip(masks, sums, strict=True):
            parts.extend([mask] if inner is None else inner._parts())
        self.masks = nn.ModuleList(parts)
        self._cached: tuple[str, Union] | None = None
        self._measure()

    def _measure(self) -> None:
        """Take heads and sizes from parts and weights."""
        parts = self._parts()
        lengths = [len(weight) for weight in self.weights() if isinstance(weight, Tensor) and weight.ndim]
        self.num_heads = common_heads(parts, "masks", at_least=max([1, *lengths]))
        if any(length not in (1, self.num_heads) for length in lengths):
            raise ValueError(
                f"`weights` must have one number per head, {self.num_heads}, or one for all, but have {lengths}."
            )
        self.num_queries, self.num_keys, self.num_graphs = common_size(parts, "masks")

    def _parts(self) -> list[Mask]:
        return list(self.masks)  # type: ignore[arg-type]

    def _weights(self) -> list[Weight]:
        """The weight of every part, in absolute value for the magnitude."""
        return [_absolute(weight) if self._is_magnitude else weight for weight in self.weights()]

    def product(self) -> Callable[[Tensor], Tensor]:
        """Multiplication by M with the weights and the products of the parts computed once."""
        terms = [(weight, part.product()) for weight, part in zip(self._weights(), self._parts(), strict=True)]
        return lambda x: _add_up(x, terms)

    def matmul(self, x: Tensor) -> Tensor:
        """The weighted sum of the parts' products."""
        return self.product()(x)

    def rmatmul(self, x: Tensor) -> Tensor:
        """The weighted sum of the parts' transposed products."""
        return _add_up(x, [(a, part.rmatmul) for a, part in zip(self._weights(), self._parts(), strict=True)])

    def product_noise(self, x: Tensor) -> Tensor | None:
        """The sum of the parts', each times its absolute weight."""
        total = None
        for weight, part in zip(self._weights(), self._parts(), strict=True):
            noise = part.product_noise(x)
            if noise is not None:
                noise = _scale(_absolute(weight), noise)
                total = noise if total is None else total + noise
        return total

    def to_dense(self) -> Tensor:
        """M, [H, N_q, N_k]."""
        return self._dense([part.to_dense() for part in self._parts()])

    def dense_weights(self) -> Tensor:
        """M; while weights are learnt, parts at rest are still kept."""
        if self._is_frozen():
            return super().dense_weights()
        return self._dense([part.dense_weights() for part in self._parts()])

    def _dense(self, parts: list[Tensor]) -> Tensor:
        terms = []
        for weight, part in zip(self._weights(), parts, strict=True):
            dtype = torch.promote_types(part.dtype, weight.dtype) if isinstance(weight, Tensor) else part.dtype
            terms.append(_scale(weight, part.to(dtype)))
        return _total(terms).expand(self.num_heads, -1, -1)

    def submatrix(self, query_nodes: Tensor | None, key_nodes: Tensor | None) -> Tensor:
        """The weighted sum of the parts' entries."""
        return self._dense([part.submatrix(query_nodes, key_nodes) for part in self._parts()])

    def magnitude(self) -> SumMask:
        """The sum of the parts' magnitudes with absolute weights."""
        parts = [part.magnitude() for part in self._parts()]
        if self._is_positive() and all(a is b for a, b in zip(parts, self._parts(), strict=True)):
            return self
        view = self._magnitude_view()
        view._modules["masks"] = nn.ModuleList(parts)
        return view

    def _is_positive(self) -> bool:
        """Whether the weights, with their gradients, are their own absolute values."""
        for weight in self._weights():
            if not isinstance(weight, Tensor):
                if weight < 0:
                    return False
            elif torch.compiler.is_compiling() or weight.device.type != "cpu" or not bool((weight > 0).all()):
                return False
        return True

    def pattern(self) -> Pattern:
        """The union of the parts' patterns."""
        if self.num_pairs_bound is None:
            return super().pattern()
        return _constant_union(self, self.structure).pattern

    def entries(self) -> Entries:
        """The weighted sums of the parts' entries; kept while nothing changes and no gradient is asked for."""
        if self.num_pairs_bound is None:
            return super().entries()
        return self._keep("entries", self._entries)

    def _entries(self) -> Entries:
        union, weights = _constant_union(self, self.structure), self._weights()
        parts = [part.entries() for part in self._parts()]
        values = _join(union, self.num_heads, weights, [part.values for part in parts])
        if self._is_positive() and all(part.magnitudes is part.values for part in parts):
            return Entries(union.pattern, values, values)
        weights = [_absolute(weight) for weight in weights]
        sizes = _join(union, self.num_heads, weights, [part.magnitudes for part in parts])
        return Entries(union.pattern, values, sizes)

    @property
    def default_normalizer(self) -> Normalizer:  # type: ignore[override]
        """The plain sum, if any part asks for it."""
        return common_normalizer(self._parts())

    @property
    def structure(self) -> str:
        """A name of the pattern."""
        return f"sum of ({', '.join([part.structure for part in self._parts()])})"

    @property
    def key_groups(self) -> Tensor | None:
        """Which graph every key belongs to: the same for all parts."""
        return self._parts()[0].key_groups

    def _count(self, counts: Iterable[int | None]) -> int | None:
        """Sum over parts, where a part of one head counts for every head; None where it is None for any."""
        total = 0
        for part, count in zip(self._parts(), counts, strict=True):
            if count is None:
                return None
            total += count * (self.num_heads // part.num_heads)
        return total

    @property
    def _num_entries(self) -> int:
        return self.num_heads * self.num_queries * self.num_keys

    @property
    def num_pairs_bound(self) -> int | None:
        """The entries of all parts."""
        return self._count([part.num_pairs_bound for part in self._parts()])

    @property
    def num_pairs_estimate(self) -> int | None:
        """The entries of all parts, as if they stood in different places."""
        total = self._count([part.num_pairs_estimate for part in self._parts()])
        return None if total is None else min(total, self._num_entries)

    @property
    def tile_work(self) -> TileWork | None:
        """That of the parts together; None where it is not known for one of them."""
        works = [part.tile_work for part in self._parts()]
        keys = self._count([None if work is None else work.keys for work in works])
        alone = self._count([None if work is None else work.alone for work in works])
        return None if keys is None or alone is None else TileWork(keys, alone)

    @property
    def num_inner_rows(self) -> int:
        """Those of the part that has most."""
        return max([part.num_inner_rows for part in self._parts()])

    @property
    def refresh_cost(self) -> int:
        """That of the parts, and one multiply-add per entry; 0 where entries are kept."""
        if self._is_frozen():
            return 0
        return max(1, sum([part.refresh_cost for part in self._parts()]) + (self.num_pairs_estimate or 0))

    @property
    def dense_cost(self) -> int:
        """That of the parts which are not at hand, and one multiply-add per entry and part."""
        total = 0
        for part in self._parts():
            kept = part.refresh_cost == 0 and part.num_heads * part.num_queries * part.num_keys <= MAX_KEPT_ENTRIES
            total += self._num_entries + (0 if kept else part.dense_cost)
        return total

    @property
    def product_cost(self) -> int:
        """Those of the parts, and one multiply-add per query and part."""
        total = self._count([part.product_cost for part in self._parts()])
        assert total is not None
        return total + len(self.masks) * self.num_heads * self.num_queries

    def sample(self, graph: Graph) -> list[Any]:
        """Walks of the parts on another graph, for :meth:`on`; None for parts that do not walk."""
        samplers: list[Any] = [getattr(part, "sample", None) for part in self._parts()]
        return [None if sample is None else sample(graph) for sample in samplers]

    def on(self, graph: Graph, features: Any = None) -> Self:
        """The same parameters on another graph.

        Args:
            graph: The other graph, or a batch. Parts that belong to no graph stay as they are.
            features: What :meth:`sample` gave for it, one item per part. Default: sampled here.
        """
        parts = self._parts()
        moves = [type(part).on is not Mask.on for part in parts]
        if not any(moves):
            return super().on(graph, features)
        given = [None] * len(parts) if features is None else list(features)
        if len(given) != len(parts) or any(own is not None and not can for own, can in zip(given, moves, strict=True)):
            raise ValueError(
                f"`features` must have one item for each of the {len(parts)} parts, None where a part does not walk, "
                f"as mask.sample(graph) gives, but has {len(given)}."
            )
        view = self._view()
        moved = [part.on(graph, own) if can else part for part, own, can in zip(parts, given, moves, strict=True)]
        view._modules["masks"] = nn.ModuleList(moved)
        view._measure()
        return view

    def _state(self) -> list[Tensor]:
        """Weights, and what the parts depend on."""
        return self.weights.tensors() + [x for part in self._parts() for x in part._state()]


def add(first: Any, second: Any, sign: float = 1.0) -> SumMask:
    """``first + second``, or ``first - second``, with a TypeError unless both are masks."""
    for side in (first, second):
        if not isinstance(side, Mask):
            raise TypeError(
                f"Only a mask can be added to a mask, but this is a {type(side).__name__}. Wrap a matrix in DenseMask; "
                "a constant c is c * LowRankMask(torch.ones(num_nodes, 1)); for a list of masks, use SumMask(masks)."
            )
    return SumMask([first, second], [1.0, sign])


def _absolute(weight: Weight) -> Weight:
    return weight.abs() if isinstance(weight, Tensor) else abs(weight)


def _scale(weight: Weight, x: Tensor) -> Tensor:
    """A number, or one per head, times x [..., H, N, C]."""
    if not isinstance(weight, Tensor):
        return x if weight == 1 else x * weight
    weight = weight.to(x.dtype)
    return (weight[:, None, None] if weight.ndim else weight) * x


def _total(terms: list[Tensor]) -> Tensor:
    out = terms[0]
    for term in terms[1:]:
        out = out + term
    return out


def _add_up(x: Tensor, terms: list[tuple[Weight, Callable[[Tensor], Tensor]]]) -> Tensor:
    """The weighted sum of products with x, in at least float32."""
    fine = x.to(torch.promote_types(x.dtype, torch.float32))
    return _total([_scale(weight, multiply(fine)) for weight, multiply in terms]).to(x.dtype)


def _join(union: Union, num_heads: int, weights: list[Weight], parts: list[Tensor]) -> Tensor:
    """Weighted entries of all parts, added up where they meet."""
    dtype = parts[0].dtype
    for tensor in (*parts, *(weight for weight in weights if isinstance(weight, Tensor))):
        dtype = torch.promote_types(dtype, tensor.dtype)
    total = parts[0].new_zeros(len(union.pattern.columns), dtype=dtype)
    for weight, values, places, heads in zip(weights, parts, union.places, union.heads, strict=True):
        values = values.to(dtype)
        if isinstance(weight, Tensor):
            weight = weight.to(dtype).expand(num_heads)
            weight = weight[:, None] if heads is None else weight.index_select(0, heads)
        values = weight * values
        # Entries of a part of one head are those of every head.
        values = values.expand(num_heads, -1).flatten() if heads is None else values
        total = total.index_add(0, places, values)
    return total


@torch.compiler.assume_constant_result
def _constant_union(mask: SumMask, structure: str) -> Union:
    """The union, computed once for every structure of the parts."""
    if mask._cached is None or mask._cached[0] != structure:
        with torch.inference_mode(False):
            mask._cached = structure, unite(mask._parts(), mask.num_heads)
    return mask._cached[1]
