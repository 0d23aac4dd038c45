"""Weighted sums of masks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from topomask.graph import Graph
from topomask.masks.composition import (
    check_masks,
    check_same_tokens,
    common_heads,
    common_normalizer,
    keep_joined,
    sample_walks,
)
from topomask.masks.entries import Entries
from topomask.masks.mask import Mask
from topomask.masks.operator import Cost, Operator, once
from topomask.masks.part_weights import PartWeights, Weight
from topomask.masks.union import join, unite
from topomask.ops.pair_attention import TileWork
from topomask.ops.registration import has_values


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
        masks = list(masks)
        check_masks(masks, "masks")
        super().__init__(num_heads=common_heads(masks, "masks"))
        if weights is None:
            weights = nn.Parameter(torch.ones(len(masks), self.num_heads, device=masks[0].kind[1]))
        self.weights = PartWeights(weights, len(masks))
        sums = [mask if isinstance(mask, SumMask) else None for mask in masks]
        self.weights.flatten([None if inner is None else inner.weights for inner in sums])
        parts: list[Mask] = []
        for mask, inner in zip(masks, sums, strict=True):
            parts.extend([mask] if inner is None else inner._parts())
        self.masks = nn.ModuleList(parts)
        lengths = [len(weight) for weight in self.weights() if isinstance(weight, Tensor) and weight.ndim]
        self.num_heads = common_heads(parts, "masks", at_least=max([1, *lengths]))
        if any(length not in (1, self.num_heads) for length in lengths):
            raise ValueError(
                f"`weights` must have one number per head, {self.num_heads}, or one for all, but have {lengths}."
            )
        self.default_normalizer = common_normalizer(parts)
        self.takes_graph = any(part.takes_graph for part in parts)
        if all(part.graph is not None or not part.takes_graph for part in parts):
            self.on()

    def _parts(self) -> list[Mask]:
        return list(self.masks)  # type: ignore[arg-type]

    @property
    def graph(self) -> Graph | None:
        """That of the first part that is on one."""
        return next((part.graph for part in self._parts() if part.takes_graph), None)

    @graph.setter
    def graph(self, graph: Graph | None) -> None:
        for part in self._parts():
            if part.takes_graph:
                part.graph = graph

    def sample(self, graph: Graph) -> list[Any]:
        """Walks of the parts on a graph, for :meth:`on`; None for parts that do not walk."""
        return [sample_walks(part, graph) for part in self._parts()]

    def on(self, graph: Graph | None = None, walks: Any = None) -> Operator:
        """The sum of the parts on a graph.

        Args:
            graph: The graph, or a batch of graphs. Default: those of the parts. Parts that belong to no graph stay as
                they are.
            walks: What :meth:`sample` gave for it, one item per part. Default: sampled once per graph.
        """
        parts = self._parts()
        if graph is not None and not self.takes_graph:
            return self._without_graph(lambda: self.on(), graph, walks)
        given = [None] * len(parts) if walks is None else list(walks)
        if len(given) != len(parts):
            raise ValueError(
                f"`walks` must have one item for each of the {len(parts)} parts, None where a part does not walk, as "
                f"mask.sample(graph) gives, but has {len(given)}."
            )
        operators = [part.on(graph if part.takes_graph else None, own) for part, own in zip(parts, given, strict=True)]
        check_same_tokens(operators, "masks")
        return keep_joined(
            self,
            operators,
            lambda: SumOperator(operators, self.weights(), self.num_heads, self.default_normalizer),
            self.weights.tensors(),
        )


class SumOperator(Operator):
    """A weighted sum of operators.

    Args:
        parts: The operators.
        weights: A number, or a tensor [], [1] or [H], for each.
        num_heads: Heads H of the sum.
        default_normalizer: What attention divides by unless it is told.
    """

    def __init__(
        self, parts: list[Operator], weights: list[Weight], num_heads: int, default_normalizer: Any = "absolute"
    ) -> None:
        self._adopt(parts[0], parts[0].num_queries, parts[0].num_keys)
        self.name, self.num_heads, self.default_normalizer = "SumMask", num_heads, default_normalizer
        for dtype in [part.dtype for part in parts] + [
            weight.dtype for weight in weights if isinstance(weight, Tensor)
        ]:
            self.dtype = torch.promote_types(self.dtype, dtype)
        self._needs_float64 = any(part._needs_float64 for part in parts)
        self._parts, self._weights = parts, weights

    def matmul(self, x: Tensor) -> Tensor:
        """The weighted sum of the parts' products, in at least float32."""
        fine = x.to(torch.promote_types(x.dtype, torch.float32))
        return self._add_up([part.matmul(fine) for part in self._parts]).to(x.dtype)

    def rmatmul(self, x: Tensor) -> Tensor:
        """The weighted sum of the parts' transposed products."""
        fine = x.to(torch.promote_types(x.dtype, torch.float32))
        return self._add_up([part.rmatmul(fine) for part in self._parts]).to(x.dtype)

    def product_noise(self, x: Tensor) -> Tensor | None:
        """The sum of the parts', each times its absolute weight."""
        total = None
        for weight, part in zip(self._weights, self._parts, strict=True):
            noise = part.product_noise(x)
            if noise is not None:
                noise = _scale(_absolute(weight), noise)
                total = noise if total is None else total + noise
        return total

    def to_dense(self) -> Tensor:
        """M, [H, N_q, N_k]; while weights are learnt, parts that do not change are kept."""
        return self._add_up_dense([part._dense_weights() for part in self._parts])

    def submatrix(self, query_nodes: Tensor | None, key_nodes: Tensor | None) -> Tensor:
        """The weighted sum of the parts' entries."""
        return self._add_up_dense([part.submatrix(query_nodes, key_nodes) for part in self._parts])

    def _add_up_dense(self, parts: list[Tensor]) -> Tensor:
        return self._add_up([part.to(self.dtype) for part in parts]).expand(self.num_heads, -1, -1)

    def _add_up(self, parts: list[Tensor]) -> Tensor:
        out = _scale(self._weights[0], parts[0])
        for weight, part in zip(self._weights[1:], parts[1:], strict=True):
            out = out + _scale(weight, part)
        return out

    def magnitude(self) -> SumOperator:
        """The sum of the parts' magnitudes with absolute weights."""
        parts = [part.magnitude() for part in self._parts]
        if self._is_positive() and all(a is b for a, b in zip(parts, self._parts, strict=True)):
            return self
        weights = [_absolute(weight) for weight in self._weights]
        return self._once("magnitude", lambda: self._copy(_parts=parts, _weights=weights))

    def _is_positive(self) -> bool:
        """Whether the weights, with their gradients, are their own absolute values."""
        for weight in self._weights:
            if not isinstance(weight, Tensor):
                if weight < 0:
                    return False
            elif not has_values(weight) or weight.device.type != "cpu" or not bool((weight > 0).all()):
                return False
        return True

    @once
    def entries(self) -> Entries:
        """The weighted sums of the parts' entries, on the union of their patterns."""
        parts = [part.entries() for part in self._parts]
        heads = [part.num_heads for part in self._parts]
        union = unite([part.pattern for part in parts], heads, self.num_heads, self.num_queries, self.num_keys)
        values = join(union, self.num_heads, self._weights, [part.values for part in parts])
        if self._is_positive() and all(part.magnitudes is part.values for part in parts):
            return Entries(union.pattern, values, values)
        weights = [_absolute(weight) for weight in self._weights]
        magnitudes = join(union, self.num_heads, weights, [part.magnitudes for part in parts])
        return Entries(union.pattern, values, magnitudes)

    def cost(self) -> Cost:
        """Those of the parts, where a part of one head counts for every head, and one multiply-add per entry."""
        costs, size = [part.cost() for part in self._parts], self.num_heads * self.num_queries * self.num_keys
        product = self._count([cost.product for cost in costs])
        assert product is not None
        pairs = self._count([cost.pairs for cost in costs])
        keys = self._count([None if cost.tiles is None else cost.tiles.keys for cost in costs])
        alone = self._count([None if cost.tiles is None else cost.tiles.alone for cost in costs])
        dense = sum(
            [
                size + (cost.dense if cost.refresh or not part._is_kept else 0)
                for part, cost in zip(self._parts, costs, strict=True)
            ]
        )
        return Cost(
            product=product + len(costs) * self.num_heads * self.num_queries,
            dense=dense,
            refresh=0 if self._is_kept else max(1, sum([cost.refresh for cost in costs]) + (pairs or 0)),
            pairs=None if pairs is None else min(pairs, size),
            max_pairs=self._count([cost.max_pairs for cost in costs]),
            tiles=None if keys is None or alone is None else TileWork(keys, alone),
            inner_rows=max([cost.inner_rows for cost in costs]),
        )

    def _count(self, counts: Iterable[int | None]) -> int | None:
        """Sum over parts, where a part of one head counts for every head; None where it is None for any."""
        total = 0
        for part, count in zip(self._parts, counts, strict=True):
            if count is None:
                return None
            total += count * (self.num_heads // part.num_heads)
        return total


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
