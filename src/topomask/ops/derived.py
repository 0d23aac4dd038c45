"""Index tensors that are derived from others once, and cached as long as those live: patterns of products, unions, ...

Results are looked up by the identity of tensors at run time, also inside ``torch.compile``: there, a derivation is an
op, so compiled code stores nothing about one graph and works for the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

_Function = TypeVar("_Function", bound=Callable[..., Any])

# The most results that are cached for one first tensor and different others.
_MAX_SLOTS = 4

# Cached results, by the first of the tensors that they were derived from.
_kept: Any = WeakTensorKeyDictionary()


def constant_when_compiled(function: _Function) -> _Function:
    """Do what ``torch.compiler.assume_constant_result`` does, without importing the compiler, which takes a second."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@contextmanager
def plainly() -> Iterator[None]:
    """A context for computing cached results: without gradients, inference mode, transforms and fake tensors.

    A cached result must not be a wrapper left behind by a transform of ``torch.func``.
    """
    if torch.compiler.is_dynamo_compiling():
        with torch.inference_mode(False), torch.no_grad():
            yield
        return
    # Both are slow to enter, and rarely needed.
    transforms = temporarily_clear_interpreter_stack if torch._C._are_functorch_transforms_active() else nullcontext
    modes = _disable_current_modes if torch._C._len_torch_dispatch_stack() else nullcontext
    with transforms(), modes(), torch.inference_mode(False), torch.no_grad():
        yield


class Derivation(NamedTuple):
    """How tensors are derived from tensors and numbers.

    A length of None is only known after the computation.
    """

    compute: Callable[..., Sequence[Tensor]]
    # The length and type of every result.
    shapes: Callable[..., Sequence[tuple[int | None, torch.dtype]]]


_derivations: dict[str, Derivation] = {}


def derivation(shapes: Callable[..., Sequence[tuple[int | None, torch.dtype]]]) -> Callable[..., Any]:
    """Decorate a function of tensors and integers, so that its results are cached as long as its first tensor lives.

    The function takes a list of tensors and a list of integers, and returns one-dimensional tensors.

    Args:
        shapes: Takes the same arguments, and returns the length of every result, or None if it is not known in advance,
            and its type. Must use ``tensor.shape[0]``: inside ``torch.compile``, ``len(tensor)`` would make the length
            a constant.
    """

    def decorate(compute: Callable[[list[Tensor], list[int]], Sequence[Tensor]]) -> Callable[..., list[Tensor]]:
        name = f"{compute.__module__}.{compute.__qualname__}"
        _derivations[name] = Derivation(compute, shapes)

        def derive(tensors: list[Tensor], numbers: list[int]) -> list[Tensor]:
            if torch.compiler.is_compiling() or any(map(is_wrapped, tensors)):
                return _derive(name, tensors, numbers)
            if any(tensor.is_meta or isinstance(tensor, FakeTensor) for tensor in tensors):
                return _empty(name, tensors, numbers, 0)
            return _find(name, tensors, numbers)

        derive.__doc__ = compute.__doc__
        return derive

    return decorate


def is_wrapped(tensor: Tensor) -> bool:
    """Whether the tensor is a wrapper of a ``torch.func`` transform that is running."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _find(name: str, tensors: Sequence[Tensor], numbers: Sequence[int]) -> list[Tensor]:
    first, *others = tensors
    slots = _kept.setdefault(first, {}).setdefault((name, *numbers), [])
    for known, found in slots:
        if len(known) == len(others) and all(a() is b for a, b in zip(known, others, strict=True)):
            return found
    with plainly():
        found = list(_derivations[name].compute(list(tensors), list(numbers)))
    # Weak references: the first tensor may be one of the others, or be kept alive by results derived from these.
    slots.append(([TensorWeakRef(other) for other in others], found))
    # The first tensor may outlive many others.
    del slots[:-_MAX_SLOTS]
    return found


@torch.library.custom_op("topomask::derive", mutates_args=())
def _derive(name: str, tensors: list[Tensor], numbers: list[int]) -> list[Tensor]:
    # Copies: compiled code may overwrite the memory of results that it no longer needs.
    return [result.clone() for result in _find(name, tensors, numbers)]


@_derive.register_fake
def _(name: str, tensors: list[Tensor], numbers: list[int]) -> list[Tensor]:
    shapes = _derivations[name].shapes(tensors, numbers)
    # All results of unknown length have the same length.
    unknown: Any = None
    if any(length is None for length, _ in shapes):
        unknown = torch.library.get_ctx().new_dynamic_size()
    return _empty(name, tensors, numbers, unknown)


def _empty(name: str, tensors: Sequence[Tensor], numbers: Sequence[int], unknown: Any) -> list[Tensor]:
    """Return uninitialised results; lengths that depend on values are ``unknown``."""
    shapes = _derivations[name].shapes(tensors, numbers)
    return [tensors[0].new_empty(unknown if length is None else length, dtype=dtype) for length, dtype in shapes]
