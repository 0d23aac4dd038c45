"""Ragged arrays: values stored one segment after the other, delimited by pointers [S + 1].

Compiled kernels do not check bounds, so index tensors are checked before: once, as long as nobody writes to them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


def index(ptr: Tensor, num_values: int | None = None) -> Tensor:
    """Return the segment of every value, [ptr[-1]]; ``num_values``, if given, saves reading that length."""
    return torch.repeat_interleave(
        torch.arange(ptr.shape[0] - 1, device=ptr.device), ptr.diff(), output_size=num_values
    )


def index_type(end: int) -> torch.dtype:
    """Return the smallest type that torch can index with and that holds integers below ``end``."""
    return torch.int32 if end < 2**31 else torch.int64


def pointers(counts: Tensor) -> Tensor:
    """Return pointers [S + 1] from the sizes of segments [S]."""
    ptr = counts.new_zeros(len(counts) + 1, dtype=torch.int64)
    torch.cumsum(counts, dim=0, out=ptr[1:])
    return ptr


def join(parts: Sequence[Tensor]) -> Tensor:
    """Return the pointers of the segments of all parts, one part after the other, from the pointers of every part."""
    return pointers(torch.cat([part.diff() for part in parts]))


def ranges(starts: Tensor, counts: Tensor) -> Tensor:
    """Return the integers starts[k], ..., starts[k] + counts[k] - 1 for every k, one range after the other."""
    offsets = pointers(counts)
    total = int(offsets[-1])
    return torch.arange(total, device=starts.device) + torch.repeat_interleave(starts - offsets[:-1], counts)


def cumulative_sum(values: Tensor, ptr: Tensor) -> Tensor:
    """Return running sums that restart in every segment.

    The result of a segment depends on its own values alone, to the last bit, unlike a global cumulative sum minus an
    offset. The number of passes is log2 of the longest segment.
    """
    out = values.clone()
    if not len(values):
        return out
    counts = ptr.diff()
    place = ranges(torch.zeros_like(counts), counts)
    longest = int(counts.max())
    shift = 1
    while shift < longest:
        shifted = torch.zeros_like(out)
        shifted[shift:] = out[:-shift]
        out = out + torch.where(place >= shift, shifted, 0.0)
        shift *= 2
    return out


def last(values: Tensor, ptr: Tensor) -> Tensor:
    """Return the last value of every segment, 0 for empty ones, [S]."""
    if not len(values):
        return values.new_zeros(len(ptr) - 1)
    return torch.where(ptr.diff() > 0, values[(ptr[1:] - 1).clamp(min=0)], 0.0)


def check_indices(name: str, values: Tensor, end: int, small: bool = False) -> None:
    """Raise a ValueError unless these are integers in [0, end), [P]."""
    check_integers(name, values, small)
    if not len(values):
        return
    low, high = (int(value) for value in values.aminmax())
    if low < 0 or high >= end:
        place = int(((values < 0) | (values.to(torch.int64) >= end)).to(torch.int8).argmax())
        raise ValueError(
            f"`{name}` must lie in [0, {end}), but {name}[{place}] is {int(values[place])}. Use 0 to {end - 1}."
        )


def check_permutation(name: str, values: Tensor, size: int) -> None:
    """Raise a ValueError unless these are the integers below ``size``, each once."""
    check_indices(name, values, size)
    if len(values) != size or not bool((torch.bincount(values, minlength=size) == 1).all()):
        raise ValueError(f"`{name}` must have each of the {size} integers below {size} once. Pass a permutation.")


def check_pointers(name: str, ptr: Tensor, end: int, count: int | None = None) -> None:
    """Raise a ValueError unless these delimit segments of ``end`` values, and ``count`` segments if that is given."""
    check_integers(name, ptr)
    if not len(ptr) or (count is not None and len(ptr) != count + 1):
        expected = "[segments + 1]" if count is None else f"[{count + 1}]"
        raise ValueError(f"`{name}` must have shape {expected}, but has shape {tuple(ptr.shape)}.")
    falls = ptr[1:] < ptr[:-1]
    if bool(falls.any()):
        place = int(falls.nonzero()[0])
        raise ValueError(
            f"`{name}` must not decrease, but {name}[{place}] is {int(ptr[place])} and {name}[{place + 1}] is "
            f"{int(ptr[place + 1])}. Pass the running sum of the sizes of segments, starting at 0."
        )
    if int(ptr[0]) != 0 or int(ptr[-1]) != end:
        raise ValueError(
            f"`{name}` must start at 0 and end at {end}, the number of values, but goes from {int(ptr[0])} to "
            f"{int(ptr[-1])}. Pass the running sum of the sizes of segments, starting at 0."
        )


def check_integers(name: str, values: Tensor, small: bool = False) -> None:
    """Raise a ValueError unless these are int64 or int32 integers, [P]; ``small`` allows smaller types too."""
    kinds = (torch.int64, torch.int32, *((torch.uint8, torch.int16, torch.int8) if small else ()))
    if values.ndim != 1 or values.dtype not in kinds:
        raise ValueError(
            f"`{name}` must be one-dimensional with dtype int64 or int32, but has shape {tuple(values.shape)} and "
            f"dtype {values.dtype}. Convert it with .long()."
        )


def first_repeat(values: Tensor, ptr: Tensor) -> int | None:
    """Return the first index of a value that is not larger than the one before it in its segment, or None."""
    follows = torch.ones(len(values) + 1, dtype=torch.bool, device=values.device)
    follows[ptr.to(torch.int64)] = False
    repeats = follows[1:-1] & (values[1:] <= values[:-1])
    return int(repeats.nonzero()[0]) + 1 if bool(repeats.any()) else None


class _Checked(NamedTuple):
    """The state of tensors when they were checked."""

    versions: list[int]
    addresses: list[int]
    tensors: list[weakref.ref[Tensor]]


_version, _address = attrgetter("_version"), methodcaller("data_ptr")

# By the check, its numbers, and the identities of tensors.
_checked: dict[tuple[Any, ...], _Checked] = {}


def check_once(check: Callable[..., None], tensors: Sequence[Tensor], *numbers: Any) -> None:
    """Check index tensors on first use, and afterwards only that nobody has written to them.

    Args:
        check: Takes the tensors and the numbers, and raises a ValueError if something is wrong.
        tensors: The tensors.
        numbers: What else the check depends on.

    Raises:
        ValueError: If something is wrong, or if a tensor was written to, since results computed from it are cached.
    """
    key = (check, numbers, *map(id, tensors))
    found = _checked.get(key)
    # This is part of every kernel call.
    if found is not None:
        if found.versions != [*map(_version, tensors)]:
            raise ValueError(
                "An index tensor of a graph, of walks or of a pattern was written to after its first use. Such tensors "
                "must not change. Make a new object instead, for walks with dataclasses.replace(walks, columns=...)."
            )
        # Sharing a tensor with other processes moves its memory.
        if found.addresses == [*map(_address, tensors)]:
            return
    # Kernels never read tensors without values: on the meta device, or fake.
    if any(tensor.is_meta or isinstance(tensor, FakeTensor) for tensor in tensors):
        return
    check(*tensors, *numbers)
    mark_checked(check, tensors, *numbers)


def mark_checked(check: Callable[..., None], tensors: Sequence[Tensor], *numbers: Any) -> None:
    """Mark tensors that were just computed as checked."""
    # Writes to tensors of inference mode cannot be detected.
    if any(tensor.is_inference() or tensor.is_meta for tensor in tensors):
        return
    key = (check, numbers, *map(id, tensors))
    forget = partial(_forget, key)
    versions, addresses = [*map(_version, tensors)], [*map(_address, tensors)]
    _checked[key] = _Checked(versions, addresses, [weakref.ref(tensor, forget) for tensor in tensors])


def _forget(key: tuple[Any, ...], _: weakref.ref[Tensor]) -> None:
    _checked.pop(key, None)
