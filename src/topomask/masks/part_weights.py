"""The weights of the parts of a sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from topomask.ops.registration import has_values

Weight = float | Tensor


class Term(NamedTuple):
    """The weight of a part: a number times tensors, or rows of them."""

    number: float
    factors: tuple[tuple[str, int | None], ...]  # name and row


class PartWeights(nn.Module):
    """One weight per part: numbers, which are constants, and tensors, which are registered once each.

    An ``nn.Parameter`` is learnt. Any other tensor is a buffer; with a gradient of its own it is used as it is.

    Args:
        weights: [P] or [P, H] for P parts, or a sequence with one number or tensor [H] per part.
        count: Parts P.

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
                    f"`weights` must have shape [{count}] or [{count}, H], one row per mask, but has shape "
                    f"{tuple(tensor.shape)}."
                )
            name = self._register(tensor)
            return [Term(1.0, ((name, row),)) for row in range(count)]
        if not isinstance(weights, (list, tuple)) or len(weights) != count:
            found = f"{len(weights)} of them" if isinstance(weights, (list, tuple)) else f"a {type(weights).__name__}"
            raise ValueError(f"`weights` must be {count} numbers or tensors, one per mask, but is {found}.")
        return [self._read_one(weight) for weight in weights]

    def _read_one(self, weight: Any) -> Term:
        if isinstance(weight, Real) and not isinstance(weight, bool):
            number = float(weight)
            if not math.isfinite(number):
                raise ValueError(f"A weight of a mask must be finite, but is {number}.")
            return Term(number, ())
        if not isinstance(weight, (Tensor, np.ndarray, list, tuple)):
            raise TypeError(
                f"A mask can be multiplied by a number, or by a tensor of one number per head, but not by "
                f"a {type(weight).__name__}. Use `mask @ x` for the product with x."
            )
        tensor = torch.as_tensor(weight)
        if tensor.ndim > 1 or not tensor.numel():
            raise ValueError(
                f"A weight of a mask must be a number, or a tensor of one number per head, [H], but has shape "
                f"{tuple(tensor.shape)}. Use `mask @ x` for the product with x."
            )
        return Term(1.0, ((self._register(tensor), None),))

    def _register(self, tensor: Tensor) -> str:
        """Make a tensor a parameter or buffer, once, and name it."""
        for name in self._names:
            if getattr(self, name) is tensor:
                return name
        if tensor.is_complex() or tensor.dtype == torch.bool:
            raise ValueError(f"`weights` must be real numbers, but has dtype {tensor.dtype}.")
        if not tensor.is_floating_point():
            tensor = tensor.to(torch.get_default_dtype())
        if has_values(tensor) and not bool(tensor.detach().isfinite().all()):
            raise ValueError(f"`weights` must be finite, but is {tensor.tolist()}.")
        name = f"weight_{len(self._names)}" if self._names else "weight"
        if isinstance(tensor, nn.Parameter):
            self.register_parameter(name, tensor)
        else:
            self.register_buffer(name, tensor)
        self._names = (*self._names, name)
        return name

    def flatten(self, inner: Sequence[PartWeights | None]) -> None:
        """Take apart the parts that are sums: what was one weight becomes one per part of that sum."""
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
        """All tensors that the weights are made of."""
        return [getattr(self, name) for name in self._names]

    def forward(self) -> list[Weight]:
        """The weight of every part: a number, or a tensor [], [1] or [H] in at least float32."""
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
        """Shown when the module is printed."""
        shown = [" * ".join([f"{number:g}", *(name for name, _ in factors)]) for number, factors in self.terms]
        return ", ".join(shown)
