"""Index tensors that are derived from others once, and kept as long as those are: patterns of products, unions, ...

What is kept is found by the tensors themselves, at run time, also inside ``torch.compile``: there a derivation is an
op, so compiled code holds nothing of one graph, and serves the next.
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

# Results that are kept for one first tensor and different others.
_MAX_SLOTS = 4

# By the first of the tensors that results were derived from.
_kept: Any = WeakTensorKeyDictionary()


def constant_when_compiled(function: _Function) -> _Function:
    """``torch.compiler.assume_constant_result``, without its import of the compiler, which takes a second."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@contextmanager
def plainly() -> Iterator[None]:
    """A context for what is computed once: without gradients, outside of inference mode, transforms and fake tensors.

    What is kept must not be a wrapper that a transform of ``torch.func`` leaves behind.
    """
    if torch.compiler.is_dynamo_compiling():
        with torch.inference_mode(False), torch.no_grad():
            yield
        return
    # Both take a while to enter, and are rarely needed.
    transforms = temporarily_clear_interpreter_stack if torch._C._are_functorch_transforms_active() else nullcontext
    modes = _disable_current_modes if torch._C._len_torch_dispatch_stack() else nullcontext
    with transforms(), modes(), torch.inference_mode(False), torch.no_grad():
        yield


class Derivation(NamedTuple):
    """How tensors are derived from tensors and numbers.

    A shape of None is that of a result whose length only the computation tells.
    """

    compute: Callable[..., Sequence[Tensor]]
    # The length and type of every result.
    shapes: Callable[..., Sequence[tuple[int | None, torch.dtype]]]


_derivations: dict[str, Derivation] = {}


def derivation(shapes: Callable[..., Sequence[tuple[int | None, torch.dtype]]]) -> Callable[..., Any]:
    """Make a function of tensors and integers one whose results are kept as long as its first tensor is.

    The function takes a list of tensors and a list of integers, and returns tensors of one axis.

    Args:
        shapes: From the same arguments, the length of every result, None where it is not known before, and its type.
            It asks for ``tensor.shape[0]``: inside ``torch.compile``, ``len(tensor)`` would make the length a constant.
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
    """Whether a transform of ``torch.func`` holds the tensor, for as long as it runs."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _find(name: str, tensors: Sequence[Tensor], numbers: Sequence[int]) -> list[Tensor]:
    first, *others = tensors
    slots = _kept.setdefault(first, {}).setdefault((name, *numbers), [])
    for known, found in slots:
        if len(known) == len(others) and all(a() is b for a, b in zip(known, others, strict=True)):
            return found
    with plainly():
        found = list(_derivations[name].compute(list(tensors), list(numbers)))
    # Weak: the first tensor may be among the others, or kept alive by what is derived from these.
    slots.append(([TensorWeakRef(other) for other in others], found))
    # The first tensor may outlive many others.
    del slots[:-_MAX_SLOTS]
    return found


@torch.library.custom_op("topomask::derive", mutates_args=())
def _derive(name: str, tensors: list[Tensor], numbers: list[int]) -> list[Tensor]:
    # Copies: compiled code may write over the memory of results that it has no more use for.
    return [result.clone() for result in _find(name, tensors, numbers)]


@_derive.register_fake
def _(name: str, tensors: list[Tensor], numbers: list[int]) -> list[Tensor]:
    shapes = _derivations[name].shapes(tensors, numbers)
    # Results of unknown length have the same one.
    unknown: Any = None
    if any(length is None for length, _ in shapes):
        unknown = torch.library.get_ctx().new_dynamic_size()
    return _empty(name, tensors, numbers, unknown)


def _empty(name: str, tensors: Sequence[Tensor], numbers: Sequence[int], unknown: Any) -> list[Tensor]:
    """Results without values. Where there are shapes alone, a length that only values could tell is taken for 0."""
    shapes = _derivations[name].shapes(tensors, numbers)
    return [tensors[0].new_empty(unknown if length is None else length, dtype=dtype) for length, dtype in shapes]
