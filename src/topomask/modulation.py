"""The learnable weight of a walk by its length."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Modulation(nn.Module):
    r"""A learnable modulation :math:`f_0, \ldots, f_L` per head.

    Args:
        num_heads: Heads H.
        max_length: Longest walk L.
        initial: Values to start from, [L + 1] or [H, L + 1]. Default: :math:`2^{-l}`.
        positive: Keep f positive by learning its logarithm. Otherwise f is free.
        name: What to call ``initial`` in errors.

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
        initial = torch.as_tensor(initial).detach()
        if not initial.is_floating_point():
            initial = initial.to(torch.get_default_dtype())
        if initial.shape not in ((max_length + 1,), (num_heads, max_length + 1)):
            raise ValueError(
                f"`{name}` must have shape [max_length + 1={max_length + 1}] or [num_heads={num_heads}, "
                f"{max_length + 1}], but has shape {tuple(initial.shape)}. Pass one number per walk length from 0 on."
            )
        # On the meta device there are shapes but no values.
        if not initial.is_meta and not bool(initial.isfinite().all()):
            raise ValueError(f"`{name}` must be finite, but is {initial.tolist()}.")
        if positive and not initial.is_meta and not bool((initial > 0).all()):
            raise ValueError(f"`{name}` must be positive, but is {initial.tolist()}. Pass positive=False for a free f.")
        self.positive = positive
        start = initial.expand(num_heads, -1).clone()
        self.weight = nn.Parameter(start.log() if positive else start)

    @property
    def num_heads(self) -> int:
        """Heads H."""
        return self.weight.shape[0]

    @property
    def max_length(self) -> int:
        """Longest walk L."""
        return self.weight.shape[1] - 1

    def forward(self) -> Tensor:
        """The modulation f, [H, L + 1]."""
        return self.weight.exp() if self.positive else self.weight * 1.0

    def extra_repr(self) -> str:
        """Shown when the module is printed."""
        return f"num_heads={self.num_heads}, max_length={self.max_length}, positive={self.positive}"
