"""Ops inside transforms of ``torch.func``: gradients and ``vmap``; forward-mode derivatives raise an error."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from topomask.ops.registration import Registered


def call(registered: Registered, arguments: Sequence[Any]) -> Any:
    """Return the outputs of an op, for tensors that may be wrapped by a transform."""
    return _function(registered).apply(*arguments)


@cache
def _function(registered: Registered) -> type[torch.autograd.Function]:
    """Make the op an autograd function: transforms support these, but not ops with a registered derivative."""
    name = registered.op._qualname

    def forward(*arguments: Any) -> Any:
        found = registered.op(*arguments)
        return tuple(found) if isinstance(found, list) else found

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if registered.save is not None:
            registered.save(ctx, inputs, output)

    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if registered.differentiate is None:
            raise NotImplementedError(
                f"{name} has no derivative: it is a derivative itself, or its arguments are data. For second "
                "derivatives, use strategy='dense', which consists of PyTorch operations."
            )
        return registered.differentiate(ctx, *grads)

    def jvp(_: Any, *tangents: Any) -> Any:
        raise NotImplementedError(
            f"{name} has no forward-mode derivative, which torch.func.jvp, jacfwd and hessian need. Use "
            "torch.func.vjp, jacrev or grad, or strategy='dense', which consists of PyTorch operations."
        )

    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        axes = [dim if isinstance(x, Tensor) else None for x, dim in zip(arguments, in_dims, strict=True)]
        is_item = registered.items(arguments)
        if all(item or axis is None for item, axis in zip(is_item, axes, strict=True)):
            found = _fold(registered, arguments, axes, is_item, info.batch_size)
        else:
            found = _loop(registered, arguments, axes, info.batch_size)
        return (found, 0) if isinstance(found, Tensor) else (found, (0,) * len(found))

    methods = {"forward": forward, "setup_context": setup_context, "backward": backward, "jvp": jvp, "vmap": vmap}
    return type(name, (torch.autograd.Function,), {key: staticmethod(method) for key, method in methods.items()})


def _fold(
    registered: Registered, arguments: Sequence[Any], axes: Sequence[int | None], is_item: Sequence[bool], size: int
) -> Tensor | tuple[Tensor, ...]:
    """Call the op once, with the axis of ``vmap`` merged into the axis of items."""

    def joined(x: Any, axis: int | None, item: bool) -> Any:
        if not item or not isinstance(x, Tensor):
            return x
        return (x.expand(size, *x.shape) if axis is None else x.movedim(axis, 0)).flatten(0, 1)

    found = registered(*map(joined, arguments, axes, is_item))
    if isinstance(found, Tensor):
        return found.unflatten(0, (size, found.shape[0] // size))
    return tuple(x.unflatten(0, (size, x.shape[0] // size)) for x in found)


def _loop(
    registered: Registered, arguments: Sequence[Any], axes: Sequence[int | None], size: int
) -> Tensor | tuple[Tensor, ...]:
    """Call the op once for every index of the axis of ``vmap``."""
    found = [
        registered(*(x if axis is None else x.select(axis, number) for x, axis in zip(arguments, axes, strict=True)))
        for number in range(size)
    ]
    if isinstance(found[0], Tensor):
        return torch.stack(found)
    return tuple(torch.stack(parts) for parts in zip(*found, strict=True))
