"""Ops that autograd, autocast, fake tensors, the compiler and torch.func understand, made from records of arguments.

A record is a NamedTuple of tensors, numbers and further records. It is the signature of an op: the schema that torch
sees, the reference, the kernel and the derivative all follow from it or take it whole.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache, partial
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar, get_type_hints

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.autograd import forward_ad

from topomask.ops.backend import in_float32

_FAKE = torch._C._TorchDispatchModeKey.FAKE

Arguments = TypeVar("Arguments", bound=tuple[Any, ...])
# A result, alone or followed by what only the derivative reads.
Outputs = Tensor | tuple[Tensor, ...]
# From the arguments, the outputs that it reads, the gradient of the result and the names of the arguments whose
# gradients are asked for, to these gradients by name. Others may be among them.
Backward = Callable[[Arguments, tuple[Tensor, ...], Tensor, Collection[str]], dict[str, Tensor]]


def is_transformed() -> bool:
    """Whether code runs inside a transform of ``torch.func``, or takes forward-mode derivatives.

    Tensors may then be wrappers without memory of their own, whose values nothing can be decided by.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def fake_mode() -> Any:
    """The mode in which all tensors are fake, where there is one."""
    if torch.compiler.is_compiling():
        return None
    return torch._C._get_dispatch_mode(_FAKE)


def has_values(tensor: Tensor) -> bool:
    """Whether the values of a tensor can be looked at.

    Not on the meta device, not those of fake tensors, not inside transforms of ``torch.func``, and not where code is
    being compiled.
    """
    if torch.compiler.is_compiling() or tensor.is_meta or isinstance(tensor, FakeTensor):
        return False
    return fake_mode() is None and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


class Registered(NamedTuple):
    """An op as torch knows it, and what transforms of ``torch.func`` need beside.

    Attributes:
        op: The op.
        items: From its arguments, which of them share their first axis with all outputs, as a batch of items that do
            not depend on each other.
        save: Keeps what ``differentiate`` needs; None for an op without a derivative.
        differentiate: Its derivative.
    """

    op: Any
    items: Callable[[Sequence[Any]], Sequence[bool]]
    save: Callable[..., None] | None = None
    differentiate: Callable[..., tuple[Tensor | None, ...]] | None = None

    def __call__(self, *arguments: Any) -> Any:
        """The outputs."""
        if not is_transformed():
            return self.op(*arguments)
        from topomask.ops.transforms import call

        return call(self, arguments)


class Op(Generic[Arguments]):
    """An op of torch, called with the record of its arguments; returns its result.

    Fields of records inside the record are known as ``outer_inner``, to torch and in ``gradients``. Records may have a
    method ``check``, which is called before a kernel reads them, also in compiled code: a ValueError where they are
    wrong.

    Args:
        name: Of the op in the namespace ``topomask``.
        arguments: Class of the record.
        forward: Computes the result, or a tuple of the result and what else ``backward`` needs.
        fake: Empty tensors of the shapes of these.
        gradients: Floating arguments that get a gradient.
        backward: The derivative, in terms of differentiable functions, which the compiler looks into.
        backward_kernel: The derivative, as code that nothing looks into. It becomes an op itself, without a derivative.
        shapes_only: Arguments of which ``backward`` reads no more than the shape; they are not kept.
        reads_result: Whether ``backward`` reads a result that is the only output. Otherwise it is given none.
        items: Arguments that share their first axis with all outputs: items that do not depend on each other.
    """

    def __init__(
        self,
        name: str,
        arguments: type[Arguments],
        forward: Callable[[Arguments], Outputs],
        fake: Callable[[Arguments], Outputs],
        *,
        gradients: Sequence[str] = (),
        backward: Backward[Arguments] | None = None,
        backward_kernel: Backward[Arguments] | None = None,
        shapes_only: Collection[str] = (),
        reads_result: bool = False,
        items: Collection[str] = (),
    ) -> None:
        self.arguments = arguments
        self.gradients = tuple(gradients)
        self._leaves = dict(_leaves(arguments))
        self._checked = list(_find_checked(arguments))
        self._shapes_only = frozenset(shapes_only)
        self._is_item = [leaf in items for leaf in self._leaves]
        outputs = get_type_hints(forward)["return"]
        self._op = _define(name, self._leaves, outputs, lambda *flat: forward(self._record(flat, checked=True)))
        self._op.register_fake(lambda *flat: fake(self._record(flat)))
        self._call = Registered(self._op, lambda _: self._is_item)
        self._num_kept = int(reads_result) if outputs is Tensor else len(outputs.__args__)
        if backward_kernel is not None:
            backward = self._opaque(f"{name}_backward", self._num_kept, backward_kernel)
        if backward is not None:
            self._backward = backward
            self._op.register_autograd(self._differentiate, setup_context=self._save)
            self._call = self._call._replace(save=self._save, differentiate=self._differentiate)
        in_float32(self._op)

    def __call__(self, arguments: Arguments) -> Tensor:
        """The result."""
        found = self._call(*flatten(arguments))
        return found[0] if isinstance(found, tuple) else found

    def outputs(self, arguments: Arguments) -> tuple[Tensor, ...]:
        """The result, and what follows it, through which nothing flows back."""
        result, *others = self._call(*flatten(arguments))
        return result, *(other.detach() for other in others)

    def check(self, arguments: Arguments, **options: Any) -> None:
        """Let torch verify that the op is registered as it should be."""
        torch.library.opcheck(self._op, tuple(flatten(arguments)), **options)

    def _record(self, flat: Sequence[Any], checked: bool = False) -> Arguments:
        found = _build(self.arguments, iter(flat))
        if checked:
            for path in self._checked:
                (attrgetter(path)(found) if path else found).check()
        return found

    def _opaque(self, name: str, num_outputs: int, kernel: Backward[Arguments]) -> Backward[Arguments]:
        """The derivative as an op that returns the gradients that are asked for, in a list."""
        outputs = {f"output_{k}": Tensor for k in range(num_outputs)}
        signature = {"grad": Tensor, "is_wanted": Sequence[bool]} | outputs | self._leaves

        def wanted(flags: Sequence[bool]) -> list[str]:
            return [name for name, flag in zip(self.gradients, flags, strict=True) if flag]

        def run(grad: Tensor, is_wanted: Sequence[bool], *rest: Any) -> list[Tensor]:
            names = wanted(is_wanted)
            grads = kernel(self._record(rest[num_outputs:], checked=True), rest[:num_outputs], grad, frozenset(names))
            return [grads[name].contiguous() for name in names]

        def fake(grad: Tensor, is_wanted: Sequence[bool], *rest: Any) -> list[Tensor]:
            given = dict(zip(self._leaves, rest[num_outputs:], strict=True))
            likes = [given[name] for name in wanted(is_wanted)]
            return [torch.empty_like(like, memory_format=torch.contiguous_format) for like in likes]

        def items(flat: Sequence[Any]) -> Sequence[bool]:
            # Items share the gradient of whatever is no item.
            shared = any(not self._is_item[list(self._leaves).index(name)] for name in wanted(flat[1]))
            return [False] * len(signature) if shared else [True, False, *[True] * num_outputs, *self._is_item]

        op = _define(name, signature, list[Tensor], run)
        op.register_fake(fake)
        call = Registered(op, items)

        def backward(
            arguments: Arguments, outputs: tuple[Tensor, ...], grad: Tensor, names: Collection[str]
        ) -> dict[str, Tensor]:
            flags = [name in names for name in self.gradients]
            return dict(zip(wanted(flags), call(grad, flags, *outputs, *flatten(arguments)), strict=True))

        return backward

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        outputs = (output if isinstance(output, tuple) else (output,))[: self._num_kept]
        kept = [
            leaf.new_empty(()).expand(leaf.shape) if name in self._shapes_only else leaf
            for name, leaf in zip(self._leaves, inputs, strict=True)
        ]
        ctx.numbers = [None if isinstance(leaf, Tensor) else leaf for leaf in kept]
        ctx.save_for_backward(*outputs, *(leaf if isinstance(leaf, Tensor) else None for leaf in kept))
        ctx.set_materialize_grads(False)

    def _differentiate(self, ctx: Any, grad: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        """Nothing flows back through what follows the result."""
        needs = dict(zip(self._leaves, ctx.needs_input_grad, strict=True))
        for name in needs:
            if needs[name] and name not in self.gradients:
                raise ValueError(f"`{name}` gets no gradient from {self._op._qualname}. Detach it.")
        names = frozenset(name for name in self.gradients if needs[name])
        if grad is None or not names:
            return (None,) * len(needs)
        saved = ctx.saved_tensors
        num_outputs = len(saved) - len(needs)
        leaves = [
            number if leaf is None else leaf for leaf, number in zip(saved[num_outputs:], ctx.numbers, strict=True)
        ]
        grads = self._backward(self._record(leaves), saved[:num_outputs], grad, names)
        return tuple(grads[name] if name in names else None for name in needs)


def flatten(record: tuple[Any, ...]) -> list[Any]:
    """The fields of a record, those of records inside it in their place."""
    leaves = []
    for field in record:
        if isinstance(field, tuple) and hasattr(field, "_fields"):
            leaves.extend(flatten(field))
        else:
            leaves.append(field)
    return leaves


def _leaves(record: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names and types of the fields of a record, those of records inside it in their place."""
    for name, kind, is_record in _fields(record):
        if is_record:
            yield from _leaves(kind, f"{prefix}{name}_")
        else:
            yield f"{prefix}{name}", kind


def _build(record: Any, leaves: Iterator[Any]) -> Any:
    """A record from its leaves."""
    return record(*(_build(kind, leaves) if is_record else next(leaves) for _, kind, is_record in _fields(record)))


def _find_checked(record: Any, path: str = "") -> Iterator[str]:
    """Where there are records that can be checked: those inside others first, itself at an empty path."""
    for name, kind, is_record in _fields(record):
        if is_record:
            yield from _find_checked(kind, f"{path}.{name}" if path else name)
    if hasattr(record, "check"):
        yield path


def check_shape(name: str, tensor: Tensor, *sizes: int | None) -> None:
    """A ValueError unless a tensor has this shape; None stands for any size."""
    shape = tensor.shape
    # Compared as a whole first: this is part of every call of a kernel.
    if shape != sizes and (
        len(shape) != len(sizes) or any(b not in (None, a) for a, b in zip(shape, sizes, strict=True))
    ):
        wanted = ", ".join("any" if size is None else str(size) for size in sizes)
        raise ValueError(f"`{name}` must have shape [{wanted}], but has shape {tuple(tensor.shape)}.")


def check_values(name: str, values: Tensor | None, count: int) -> None:
    """A ValueError unless there is a value per entry, [P], or one per head and entry, [V, P]."""
    if values is not None and (values.ndim not in (1, 2) or values.shape[-1] != count):
        raise ValueError(
            f"`{name}` must have shape [{count}] or [heads, {count}], one value per entry of the pattern, but has "
            f"shape {tuple(values.shape)}."
        )
    if values is not None and not values.is_floating_point():
        raise ValueError(f"`{name}` must have a floating dtype, but has {values.dtype}. Convert it with .float().")


@cache
def _fields(record: Any) -> list[tuple[str, Any, bool]]:
    """Names and types of the fields of a record, and whether they are records."""
    return [(name, kind, hasattr(kind, "_fields")) for name, kind in get_type_hints(record).items()]


def _define(name: str, parameters: dict[str, Any], returns: Any, function: Callable[..., Any]) -> Any:
    """A custom op with a signature that only exists as data."""

    def flat(*leaves: Any) -> Any:
        return function(*leaves)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature(
        [inspect.Parameter(key, kind, annotation=value) for key, value in parameters.items()], return_annotation=returns
    )
    flat.__signature__ = signature  # type: ignore[attr-defined]
    op = torch.library.custom_op(f"topomask::{name}", flat, mutates_args=())
    defer_compiler(op)
    return op


def defer_compiler(op: Any) -> None:
    """Keep eager calls of a custom op from importing ``torch._dynamo``, which takes more than a second.

    PyTorch hides kernels from the compiler when they are first called, and imports the compiler to do so. That can wait
    until something else imports it.
    """
    for wrapper in getattr(op, "_backend_fns", {}).values():
        kernel = getattr(wrapper, "__wrapped__", None)
        if kernel is not None:
            kernel.__dynamo_disable = partial(_run_hidden, kernel, wrapper)


def _run_hidden(kernel: Any, wrapper: Any, *arguments: Any) -> Any:
    if "torch._dynamo" not in sys.modules:
        return kernel(*arguments)
    kernel.__dict__.pop("__dynamo_disable", None)
    return wrapper(*arguments)
