"""The learnable modulation f, a weight per walk length, and checks of parameters per head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from topomask.graph.input import check_integer
from topomask.ops.registration import has_values


def positive_per_head(name: str, value: float | Sequence[float] | Tensor, num_heads: int) -> Tensor:
    """Return a positive number per head, [H], given one number or one per head."""
    check_integer("num_heads", num_heads, 1)
    start = _floats(value)
    if start.shape not in ((), (1,), (num_heads,)):
        raise ValueError(f"`{name}` must be a number or [num_heads={num_heads}], but has shape {tuple(start.shape)}.")
    if has_values(start) and not bool(((start > 0) & start.isfinite()).all()):
        raise ValueError(f"`{name}` must be positive and finite, but is {start.tolist()}.")
    return start.expand(num_heads).clone()


def _floats(values: Any) -> Tensor:
    tensor = torch.as_tensor(values).detach()
    return tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())


def table_per_head(name: str, initial: Any, num_heads: int, size: int, size_text: str, what: str) -> Tensor:
    """Return finite initial values, one per head and ``what``, [H, size], given as [size] or [H, size]."""
    initial = _floats(initial)
    if initial.shape not in ((size,), (num_heads, size)):
        raise ValueError(
            f"`{name}` must have shape [{size_text}] or [num_heads={num_heads}, {size}], but has shape "
            f"{tuple(initial.shape)}. Pass one number per {what}."
        )
    # Meta tensors have no values.
    if has_values(initial) and not bool(initial.isfinite().all()):
        raise ValueError(f"`{name}` must be finite, but is {initial.tolist()}.")
    return initial.expand(num_heads, -1).clone()


class Modulation(nn.Module):
    r"""A learnable modulation :math:`f_0, \ldots, f_L` per head.

    Args:
        num_heads: Number of heads H.
        max_length: Longest walk L.
        initial: Initial values, [L + 1] or [H, L + 1]. Default: :math:`2^{-l}`.
        positive: Keep f positive by learning its logarithm. Otherwise f is unconstrained.
        name: The name of ``initial`` in errors.

    Example:
        >>> Modulation(num_heads=2, max_length=2)()
        tensor([[1.0000, 0.5000, 0.2500],
                [1.0000, 0.5000, 0.2500]], grad_fn=<...>)
    """

    def __init__(
        self,
        num_heads: int,
        max_length: int,
        initial: Tensor | None = None,
        positive: bool = False,
        *,
        name: str = "initial",
    ) -> None:
        super().__init__()
        if initial is None:
            initial = 0.5 ** torch.arange(max_length + 1)
        size = f"max_length + 1={max_length + 1}"
        start = table_per_head(name, initial, num_heads, max_length + 1, size, "walk length, starting at 0")
        if positive and has_values(start) and not bool((start > 0).all()):
            raise ValueError(f"`{name}` must be positive, but is {start.tolist()}. Change it, or pass positive=False.")
        self.positive = positive
        self.weight = nn.Parameter(start.log() if positive else start)

    @property
    def num_heads(self) -> int:
        """Number of heads H."""
        return self.weight.shape[0]

    def forward(self) -> Tensor:
        """The modulation f, [H, L + 1], in at least float32."""
        weight = self.weight.to(torch.promote_types(self.weight.dtype, torch.float32))
        return weight.exp() if self.positive else weight * 1.0

    def extra_repr(self) -> str:
        """Shown when the module is printed."""
        return f"num_heads={self.num_heads}, max_length={self.weight.shape[1] - 1}, positive={self.positive}"
