"""Operators that are cached while no parameter changes."""

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

# CPU tensors up to this size are compared by value: `tensor.data.copy_` does not raise their version.
_MAX_COMPARED = 4096


class Seen(NamedTuple):
    """The state of a tensor at some time."""

    tensor: Tensor
    version: int
    address: int
    values: Tensor | None

    @classmethod
    def now(cls, tensor: Tensor) -> Self:
        """Return the current state of a tensor."""
        is_small = tensor.device.type == "cpu" and tensor.numel() <= _MAX_COMPARED
        with torch.inference_mode(False):
            values = tensor.detach().clone() if is_small else None
        return cls(tensor, tensor._version, tensor.data_ptr(), values)

    def is_same(self, tensor: Tensor) -> bool:
        """Whether this is the same tensor and nothing has been written to it."""
        if self.tensor is not tensor or self.version != tensor._version or self.address != tensor.data_ptr():
            return False
        # A parameter may be moved to another precision in place.
        return self.values is None or (self.values.dtype == tensor.dtype and torch.equal(self.values, tensor.detach()))


def _settings(mask: Mask) -> list[Any]:
    """Precision and device of a mask, and its public numbers and strings, which users may assign to."""
    # Not `mask._anchor`, which is slower: this is part of every call.
    anchor = mask._buffers["_anchor"]
    assert anchor is not None
    settings = [
        value
        for name, value in mask.__dict__.items()
        if name[0] != "_" and name != "training" and isinstance(value, (bool, int, float, str))
    ]
    return [anchor.dtype, anchor.device, *settings]


class _Kept(NamedTuple):
    """An operator, and what it was made from."""

    operator: Operator
    state: list[Seen]
    parts: Sequence[Operator]
    settings: Any

    def fits(self, state: Sequence[Tensor], parts: Sequence[Operator], settings: Any) -> bool:
        """Whether nothing has changed since the operator was made."""
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
    """Return the cached operator of a mask, or ``make()`` if anything it depends on has changed.

    ``slots`` returns the cache, by mask. The operator depends on the tensors ``state`` and the operators ``parts``.
    """
    if torch.compiler.is_compiling() or fake_mode() is not None:
        return make()
    learns = torch.is_grad_enabled()
    if learns and any(x.is_inference() and x.requires_grad for x in state):
        raise RuntimeError(
            f"A parameter of {type(mask).__name__} was created inside torch.inference_mode(), so it cannot be trained. "
            "Create it outside, or call the mask inside torch.no_grad()."
        )
    # Cached only if no gradient is needed and changes can be detected.
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
