"""Weighted sums of masks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import reduce
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from topomask.graph import Graph
from topomask.masks.composition import (
    Weight,
    check_masks,
    check_same_tokens,
    common_heads,
    common_normalizer,
    join,
    keep_joined,
    sample_walks,
    unite,
)
from topomask.masks.entries import Entries
from topomask.masks.mask import Mask, register
from topomask.masks.operator import Cost, Operator, all_positive, once
from topomask.ops.pair_attention import TileWork
from topomask.ops.registration import has_values


class SumMask(Mask):
    r"""A weighted sum of masks, each with its own fast product.

    .. math:: M^{(h)} = \sum_p a_{ph}\, M_p^{(h)}

    A product costs as much as the products of all parts. If all parts are sparse, so is the sum, on the union of their
    patterns. ``a * first + second``, ``first - second`` and ``-first`` build sums with fixed weights; nested sums are
    flattened into one.

    Args:
        masks: The parts, for the same queries and keys, on the same batch of graphs. A part with one head is used for
            every head.
        weights: :math:`a`, [P] or [P, H] for P parts, or a list with one number or tensor [H] per part. An
            ``nn.Parameter`` is learnt, a tensor that requires a gradient is used as it is, any other tensor becomes a
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
        if not masks:
            raise ValueError("`masks` is empty. Pass at least one mask.")
        check_masks({f"masks[{place}]": mask for place, mask in enumerate(masks)})
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
                f"`weights` must have 1 or num_heads={self.num_heads} numbers per mask, but have {lengths}. "
                "Pass one number per head, or one for all heads."
            )
        self.default_normalizer = common_normalizer(parts)
        self.takes_graph = any(part.takes_graph for part in parts)
        if all(part.graph is not None or not part.takes_graph for part in parts):
            self.on()

    def _parts(self) -> list[Mask]:
        return list(self.masks)  # type: ignore[arg-type]

    @property
    def graph(self) -> Graph | None:
        """The graph of the first part that takes one."""
        return next((part.graph for part in self._parts() if part.takes_graph), None)

    @graph.setter
    def graph(self, graph: Graph | None) -> None:
        for part in self._parts():
            if part.takes_graph:
                part.graph = graph

    def sample(self, graph: Graph) -> list[Any]:
        """Return walks of the parts on a graph, for :meth:`on`; None for parts that do not use walks."""
        return [sample_walks(part, graph) for part in self._parts()]

    def on(self, graph: Graph | None = None, walks: Any = None) -> Operator:
        """Return the operator on a graph, with the current values of the parameters.

        Args:
            graph: The graph, or a batch of graphs, for all parts that take one. Default: the parts' own graphs.
            walks: What :meth:`sample` returned for it, one item per part. Default: sampled once per graph.
        """
        parts = self._parts()
        if graph is not None and not self.takes_graph:
            raise self._takes_no_graph()
        given = [None] * len(parts) if walks is None else list(walks)
        if len(given) != len(parts):
            raise ValueError(
                f"`walks` must have one item for each of the {len(parts)} parts, None if a part does not use walks, "
                f"but has {len(given)}. Pass mask.sample(graph)."
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
    """A weighted sum of operators; a weight is a number, or a tensor [], [1] or [H]."""

    def __init__(
        self, parts: list[Operator], weights: list[Weight], num_heads: int, default_normalizer: Any = "absolute"
    ) -> None:
        self._adopt(parts[0], parts[0].num_queries, parts[0].num_keys)
        self.name, self.num_heads, self.default_normalizer = "SumMask", num_heads, default_normalizer
        dtypes = [x.dtype for x in (*parts, *weights) if not isinstance(x, float)]
        self.dtype = reduce(torch.promote_types, dtypes)
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
        """The sum of the parts' noise, each times its absolute weight."""
        found = zip(self._absolute_weights(), (part.product_noise(x) for part in self._parts), strict=True)
        noises = [_scale(weight, noise) for weight, noise in found if noise is not None]
        return sum(noises[1:], noises[0]) if noises else None

    def to_dense(self) -> Tensor:
        """M, [H, N_q, N_k]; while only weights are learnt, the parts are cached."""
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
        return self._once("magnitude", lambda: self._copy(_parts=parts, _weights=self._absolute_weights()))

    def _absolute_weights(self) -> list[Weight]:
        return [weight.abs() if isinstance(weight, Tensor) else abs(weight) for weight in self._weights]

    def _is_positive(self) -> bool:
        """Whether all weights equal their absolute values, gradients included."""
        return all(all_positive(x) if isinstance(x, Tensor) else x >= 0 for x in self._weights)

    @once
    def entries(self) -> Entries:
        """The weighted sums of the parts' entries, on the union of their patterns."""
        parts = [part.entries() for part in self._parts]
        heads = [part.num_heads for part in self._parts]
        union = unite([part.pattern for part in parts], heads, self.num_heads, self.num_queries, self.num_keys)
        values = join(union, self.num_heads, self._weights, [part.values for part in parts])
        if self._is_positive() and all(part.magnitudes is part.values for part in parts):
            return Entries(union.pattern, values, values)
        magnitudes = join(union, self.num_heads, self._absolute_weights(), [part.magnitudes for part in parts])
        return Entries(union.pattern, values, magnitudes)

    def cost(self) -> Cost:
        """The costs of the parts, where a part with one head counts for every head, plus a multiply-add per entry."""
        costs, size = [part.cost() for part in self._parts], self.num_heads * self.num_queries * self.num_keys
        product = self._count([cost.product for cost in costs])
        assert product is not None
        pairs = self._count([cost.pairs for cost in costs])
        keys = self._count([None if cost.tiles is None else cost.tiles.keys for cost in costs])
        alone = self._count([None if cost.tiles is None else cost.tiles.alone for cost in costs])
        changing = [
            cost.dense for part, cost in zip(self._parts, costs, strict=True) if cost.refresh or not part._is_kept
        ]
        return Cost(
            product=product + len(costs) * self.num_heads * self.num_queries,
            dense=len(costs) * size + sum(changing),
            refresh=0 if self._is_kept else max(1, sum([cost.refresh for cost in costs]) + (pairs or 0)),
            pairs=None if pairs is None else min(pairs, size),
            max_pairs=self._count([cost.max_pairs for cost in costs]),
            tiles=None if keys is None or alone is None else TileWork(keys, alone),
            passes=sum([cost.passes for cost in costs]),
            inner_rows=max([cost.inner_rows for cost in costs]),
        )

    def _count(self, counts: Iterable[int | None]) -> int | None:
        """Sum over parts, where a part with one head counts for every head; None if it is None for any."""
        total = 0
        for part, count in zip(self._parts, counts, strict=True):
            if count is None:
                return None
            total += count * (self.num_heads // part.num_heads)
        return total


def _scale(weight: Weight, x: Tensor) -> Tensor:
    """Multiply x [..., H, N, C] by a number, or by one per head."""
    if not isinstance(weight, Tensor):
        return x if weight == 1 else x * weight
    weight = weight.to(x.dtype)
    return (weight[:, None, None] if weight.ndim else weight) * x


class Term(NamedTuple):
    """The weight of a part: a number times tensors, or rows of tensors."""

    number: float
    factors: tuple[tuple[str, int | None], ...]  # name and row


class PartWeights(nn.Module):
    """One weight per part: numbers, which are constants, or tensors, each registered once.

    ``weights`` of ``count`` parts are given as to :class:`SumMask`.

    Example:
        >>> weights = PartWeights([2.0, torch.tensor([0.5, 1.0])], count=2)
        >>> weights()
        [2.0, tensor([0.5000, 1.0000])]
    """

    def __init__(self, weights: Any, count: int) -> None:
        super().__init__()
        self._names: tuple[str, ...] = ()
        self.terms: tuple[Term, ...] = tuple(self._read(weights, count))

    def _read(self, weights: Any, count: int) -> list[Term]:
        if isinstance(weights, (Tensor, np.ndarray)):
            tensor = torch.as_tensor(weights)
            if tensor.ndim not in (1, 2) or len(tensor) != count or not tensor.numel():
                raise ValueError(
                    f"`weights` must have shape [{count}] or [{count}, H], but has shape {tuple(tensor.shape)}. "
                    "Pass one row per mask."
                )
            name = self._register(tensor)
            return [Term(1.0, ((name, row),)) for row in range(count)]
        if not isinstance(weights, (list, tuple)) or len(weights) != count:
            found = f"{len(weights)} of them" if isinstance(weights, (list, tuple)) else f"a {type(weights).__name__}"
            raise ValueError(f"`weights` must be {count} numbers or tensors, but is {found}. Pass one per mask.")
        return [self._read_one(weight) for weight in weights]

    def _read_one(self, weight: Any) -> Term:
        if isinstance(weight, Real) and not isinstance(weight, bool):
            number = float(weight)
            if not math.isfinite(number):
                raise ValueError(f"The weight of a mask must be finite, but is {number}.")
            return Term(number, ())
        if not isinstance(weight, (Tensor, np.ndarray, list, tuple)):
            raise TypeError(
                f"A mask can be multiplied by a number or a tensor [num_heads], but not by a {type(weight).__name__}. "
                "For the product with x, use `mask @ x`."
            )
        tensor = torch.as_tensor(weight)
        if tensor.ndim > 1 or not tensor.numel():
            raise ValueError(
                f"The weight of a mask must be a number or a tensor [num_heads], but has shape {tuple(tensor.shape)}. "
                "For the product with x, use `mask @ x`."
            )
        return Term(1.0, ((self._register(tensor), None),))

    def _register(self, tensor: Tensor) -> str:
        """Register a tensor as a parameter or buffer, unless it is registered already, and return its name."""
        for name in self._names:
            if getattr(self, name) is tensor:
                return name
        if tensor.is_complex() or tensor.dtype == torch.bool:
            raise ValueError(f"`weights` must be real numbers, but has dtype {tensor.dtype}. Convert it with .float().")
        if not tensor.is_floating_point():
            tensor = tensor.to(torch.get_default_dtype())
        if has_values(tensor) and not bool(tensor.detach().isfinite().all()):
            raise ValueError(f"`weights` must be finite, but is {tensor.tolist()}.")
        name = f"weight_{len(self._names)}" if self._names else "weight"
        register(self, name, tensor)
        self._names = (*self._names, name)
        return name

    def flatten(self, inner: Sequence[PartWeights | None]) -> None:
        """Flatten nested sums: the weight of a sum becomes one weight for each of its parts."""
        terms: list[Term] = []
        for outer, weights in zip(self.terms, inner, strict=True):
            if weights is None:
                terms.append(outer)
                continue
            for term in weights.terms:
                own = tuple((self._register(getattr(weights, name)), row) for name, row in term.factors)
                terms.append(Term(outer.number * term.number, outer.factors + own))
        self.terms = tuple(terms)

    def tensors(self) -> list[Tensor]:
        """Return all tensors that the weights are computed from."""
        return [getattr(self, name) for name in self._names]

    def forward(self) -> list[Weight]:
        """Return the weight of every part: a number, or a tensor [], [1] or [H] in at least float32."""
        weights: list[Weight] = []
        for number, factors in self.terms:
            weight: Weight = number
            for name, row in factors:
                tensor = getattr(self, name)
                tensor = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
                weight = weight * (tensor if row is None else tensor[row])
            weights.append(weight)
        return weights

    def extra_repr(self) -> str:
        """Settings shown when the module is printed."""
        return ", ".join(" * ".join([f"{number:g}", *(name for name, _ in factors)]) for number, factors in self.terms)
