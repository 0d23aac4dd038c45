"""Operators that are kept while no parameter changes."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor

from topomask.ops.derived import is_wrapped, plainly
from topomask.ops.registration import fake_mode

if TYPE_CHECKING:
    from topomask.masks.mask import Mask
    from topomask.masks.operator import Operator

# Numbers of a tensor on the CPU that are compared one by one: `tensor.data.copy_` raises no version.
_MAX_COMPARED = 4096


class Seen(NamedTuple):
    """A tensor as it was at some time."""

    tensor: Tensor
    version: int
    address: int
    values: Tensor | None

    @classmethod
    def now(cls, tensor: Tensor) -> Self:
        """A tensor as it is."""
        with torch.inference_mode(False):
            values = tensor.detach().clone() if _is_compared(tensor) else None
        return cls(tensor, tensor._version, tensor.data_ptr(), values)

    def is_same(self, tensor: Tensor) -> bool:
        """Whether this is the tensor, and nothing was written to it."""
        if self.tensor is not tensor or self.version != tensor._version or self.address != tensor.data_ptr():
            return False
        # A parameter may be moved to another precision in place.
        return self.values is None or (self.values.dtype == tensor.dtype and torch.equal(self.values, tensor.detach()))


def _is_compared(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.numel() <= _MAX_COMPARED


def _settings(mask: Mask) -> list[Any]:
    """Public attributes of a mask that are plain numbers or words, which may be assigned to; precision and device."""
    # Read where it lies: this is part of every call.
    anchor = mask._buffers["_anchor"]
    assert anchor is not None
    return [
        anchor.dtype,
        anchor.device,
        *(
            value
            for name, value in mask.__dict__.items()
            if name[0] != "_" and name != "training" and isinstance(value, (bool, int, float, str))
        ),
    ]


class _Kept(NamedTuple):
    """An operator, and what it was made of."""

    operator: Operator
    state: list[Seen]
    parts: Sequence[Operator]
    settings: Any

    def fits(self, state: Sequence[Tensor], parts: Sequence[Operator], settings: Any) -> bool:
        """Whether nothing has changed."""
        return (
            self.settings == settings
            and (len(self.state), len(self.parts)) == (len(state), len(parts))
            and all(a is b for a, b in zip(self.parts, parts, strict=True))
            and all(a.is_same(b) for a, b in zip(self.state, state, strict=True))
        )


def keep(
    slots: Callable[[], MutableMapping[Any, Any]],
    mask: Mask,
    state: Sequence[Tensor],
    parts: Sequence[Operator],
    make: Callable[[], Operator],
) -> Operator:
    """The operator that ``make`` gives; the one of the last time where nothing has changed that it depends on.

    Args:
        slots: Where operators are kept, by mask.
        mask: The mask.
        state: Tensors that the operator depends on.
        parts: Operators that it is made of.
        make: Makes the operator of the values that parameters have now.
    """
    if torch.compiler.is_compiling() or fake_mode() is not None:
        return make()
    learns = torch.is_grad_enabled()
    if learns and any(x.is_inference() and x.requires_grad for x in state):
        raise RuntimeError(
            f"A parameter of {type(mask).__name__} was made inside torch.inference_mode(), so it cannot be trained. "
            "Make it outside, or call the mask inside torch.no_grad()."
        )
    # Kept while no gradient is asked for, if changes can be noticed.
    if any(x.is_meta or x.is_inference() or (learns and x.requires_grad) or is_wrapped(x) for x in state) or not all(
        part._is_kept for part in parts
    ):
        operator = make()
        operator._is_kept = False
        operator._watch(state, parts)
        return operator
    kept, settings = slots(), _settings(mask)
    last: _Kept | None = kept.get(mask)
    if last is None or not last.fits(state, parts, settings):
        with plainly():
            operator = make()
        operator._is_kept = True
        operator._watch(state, parts)
        last = kept[mask] = _Kept(operator, [Seen.now(tensor) for tensor in state], parts, settings)
    return last.operator
