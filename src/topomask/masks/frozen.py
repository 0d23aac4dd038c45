"""Whether parameters are at rest: what is computed of them can then be kept."""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor

# Numbers of a tensor on the CPU that are compared one by one: `tensor.data.copy_` raises no version.
_MAX_COMPARED = 4096


class Seen(NamedTuple):
    """A tensor as it was at some time."""

    tensor: Tensor
    version: int
    values: Tensor | None

    @classmethod
    def now(cls, tensor: Tensor) -> Self:
        """A tensor as it is."""
        with torch.inference_mode(False):
            values = tensor.detach().clone() if _is_compared(tensor) else None
        return cls(tensor, tensor._version, values)

    def is_same(self, tensor: Tensor) -> bool:
        """Whether this is the tensor, and nothing was written to it."""
        if self.tensor is not tensor or self.version != tensor._version:
            return False
        # A parameter may be moved to another precision in place.
        return self.values is None or (self.values.dtype == tensor.dtype and torch.equal(self.values, tensor.detach()))


def _is_compared(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.numel() <= _MAX_COMPARED


def is_frozen(state: list[Tensor]) -> bool:
    """Whether operators can be kept: no gradient is asked for, and changes can be noticed."""
    learns = torch.is_grad_enabled()
    return not any(x.is_meta or x.is_inference() or (learns and x.requires_grad) for x in state)


def is_unchanged(seen: list[Seen], state: list[Tensor]) -> bool:
    """Whether tensors are those that were seen, as they were."""
    return len(seen) == len(state) and all(a.is_same(b) for a, b in zip(seen, state, strict=True))
