"""Ops that work with autograd, autocast, fake tensors, torch.compile and torch.func, declared as records of arguments.

A record is a NamedTuple of tensors, numbers and nested records. It is the signature of an op: the schema that torch
sees is derived from it, and the reference, the kernel and the backward pass take it, or its fields, as arguments.
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
# The result, alone or followed by tensors that only the backward pass reads.
Outputs = Tensor | tuple[Tensor, ...]
# Takes the arguments, the outputs that it reads, the gradient of the result, and the names of the arguments that need
# gradients. Returns gradients by name, possibly more than were asked for.
Backward = Callable[[Arguments, tuple[Tensor, ...], Tensor, Collection[str]], dict[str, Tensor]]


def is_transformed() -> bool:
    """Whether code runs inside a transform of ``torch.func``, or under forward-mode differentiation.

    Tensors may then be wrappers without memory of their own, so code must not branch on their values.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def fake_mode() -> Any:
    """Return the active mode in which all tensors are fake, or None."""
    if torch.compiler.is_compiling():
        return None
    return torch._C._get_dispatch_mode(_FAKE)


def has_values(tensor: Tensor) -> bool:
    """Whether the values of a tensor can be read.

    They cannot on the meta device, for fake tensors, inside transforms of ``torch.func``, or while code is being
    compiled.
    """
    if torch.compiler.is_compiling() or tensor.is_meta or isinstance(tensor, FakeTensor):
        return False
    return fake_mode() is None and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


class Registered(NamedTuple):
    """An op registered with torch, and what transforms of ``torch.func`` need in addition.

    Attributes:
        op: The op.
        items: Takes the arguments, and returns which of them share their first axis with all outputs, as a batch of
            independent items.
        save: Saves what ``differentiate`` needs; None for an op without a derivative.
        differentiate: The backward pass; None for an op without a derivative.
    """

    op: Any
    items: Callable[[Sequence[Any]], Sequence[bool]]
    save: Callable[..., None] | None = None
    differentiate: Callable[..., tuple[Tensor | None, ...]] | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Return the outputs."""
        if not is_transformed():
            return self.op(*arguments)
        from topomask.ops.transforms import call

        return call(self, arguments)


class Op(Generic[Arguments]):
    """A custom torch op. Calling it with the record of its arguments returns its result.

    A field of a nested record is named ``outer_inner``, both in the schema and in ``gradients``. A record may have a
    method ``check``, which raises a ValueError if the record is invalid. It is called before a kernel reads the record,
    also in compiled code.

    Args:
        name: Name of the op in the namespace ``topomask``.
        arguments: Class of the record.
        forward: Computes the result, or a tuple of the result and other tensors that ``backward`` needs.
        fake: Returns empty tensors with the shapes of the outputs of ``forward``.
        gradients: Floating-point arguments that get a gradient.
        backward: The backward pass, made of differentiable functions; the compiler traces it.
        backward_kernel: The backward pass as opaque code. It becomes an op of its own, without a derivative.
        shapes_only: Arguments of which ``backward`` reads only the shape; their values are not saved.
        reads_result: Whether ``backward`` reads the result, if that is the only output. If False, it gets no outputs.
        items: Arguments that share their first axis with all outputs, as a batch of independent items.
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
        """Return the result."""
        found = self._call(*flatten(arguments))
        return found[0] if isinstance(found, tuple) else found

    def outputs(self, arguments: Arguments) -> tuple[Tensor, ...]:
        """Return the result followed by the other outputs, which are detached."""
        result, *others = self._call(*flatten(arguments))
        return result, *(other.detach() for other in others)

    def check(self, arguments: Arguments, **options: Any) -> None:
        """Let torch check that the op is registered correctly."""
        torch.library.opcheck(self._op, tuple(flatten(arguments)), **options)

    def _record(self, flat: Sequence[Any], checked: bool = False) -> Arguments:
        found = _build(self.arguments, iter(flat))
        if checked:
            for path in self._checked:
                (attrgetter(path)(found) if path else found).check()
        return found

    def _opaque(self, name: str, num_outputs: int, kernel: Backward[Arguments]) -> Backward[Arguments]:
        """Make the backward pass an op, which returns a list of the gradients that are asked for."""
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
            # All items contribute to the gradient of an argument that has no axis of items.
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
        """Compute gradients. Outputs other than the result have none."""
        needs = dict(zip(self._leaves, ctx.needs_input_grad, strict=True))
        for name in needs:
            if needs[name] and name not in self.gradients:
                raise ValueError(
                    f"`{name}` requires a gradient, which {self._op._qualname} does not compute. Detach it."
                )
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
    """Return the fields of a record in order, with nested records flattened."""
    leaves = []
    for field in record:
        if isinstance(field, tuple) and hasattr(field, "_fields"):
            leaves.extend(flatten(field))
        else:
            leaves.append(field)
    return leaves


def _leaves(record: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the names and types of the fields of a record in order, with nested records flattened."""
    for name, kind, is_record in _fields(record):
        if is_record:
            yield from _leaves(kind, f"{prefix}{name}_")
        else:
            yield f"{prefix}{name}", kind


def _build(record: Any, leaves: Iterator[Any]) -> Any:
    """Build a record from its flattened fields."""
    return record(*(_build(kind, leaves) if is_record else next(leaves) for _, kind, is_record in _fields(record)))


def _find_checked(record: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of all records that have a ``check``, nested ones first; that of the record itself is empty."""
    for name, kind, is_record in _fields(record):
        if is_record:
            yield from _find_checked(kind, f"{path}.{name}" if path else name)
    if hasattr(record, "check"):
        yield path


def check_shape(name: str, tensor: Tensor, *sizes: int | None) -> None:
    """Raise a ValueError unless a tensor has this shape; None allows any size."""
    shape = tensor.shape
    # Compared as a whole first, since this is part of every kernel call.
    if shape != sizes and (
        len(shape) != len(sizes) or any(b not in (None, a) for a, b in zip(shape, sizes, strict=True))
    ):
        wanted = ", ".join("any" if size is None else str(size) for size in sizes)
        raise ValueError(f"`{name}` must have shape [{wanted}], but has shape {tuple(tensor.shape)}.")


def check_values(name: str, values: Tensor | None, count: int) -> None:
    """Raise a ValueError unless there is one value per entry, [P], or per head and entry, [V, P]."""
    if values is not None and (values.ndim not in (1, 2) or values.shape[-1] != count):
        raise ValueError(
            f"`{name}` must have shape [{count}] or [heads, {count}], one value per entry of the pattern, but has "
            f"shape {tuple(values.shape)}."
        )
    if values is not None and not values.is_floating_point():
        raise ValueError(f"`{name}` must have a floating dtype, but has {values.dtype}. Convert it with .float().")


@cache
def _fields(record: Any) -> list[tuple[str, Any, bool]]:
    """Return the names and types of the fields of a record, and whether they are records themselves."""
    return [(name, kind, hasattr(kind, "_fields")) for name, kind in get_type_hints(record).items()]


def _define(name: str, parameters: dict[str, Any], returns: Any, function: Callable[..., Any]) -> Any:
    """Define a custom op whose signature is given as data."""

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
