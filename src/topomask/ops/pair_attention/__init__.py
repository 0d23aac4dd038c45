"""Linear attention over the entries of a sparse mask, with its normaliser, in one pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from topomask.ops.backend import compiled
from topomask.ops.pair_attention import reference
from topomask.ops.sparse_product import Pattern

_PATTERN = 5


@torch.library.custom_op("topomask::pair_attention", mutates_args=())
def _pair_attention(
    row_ptr: Tensor,
    columns: Tensor,
    column_ptr: Tensor,
    rows: Tensor,
    order: Tensor,
    values: Tensor,
    magnitudes: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    absolute: bool,
) -> tuple[Tensor, Tensor]:
    inputs = (row_ptr, columns, values, magnitudes, q, k, v)
    if not compiled(*inputs):
        return reference.pair_attention(*inputs, absolute)
    from topomask.ops.pair_attention import numba

    return numba.pair_attention(*inputs, absolute)


@_pair_attention.register_fake
def _(*args: Any) -> tuple[Tensor, Tensor]:
    q, v = args[7], args[9]
    return q.new_empty(q.shape[0], q.shape[1], v.shape[2]), q.new_empty(q.shape[0], q.shape[1])


@torch.library.custom_op("topomask::pair_attention_backward", mutates_args=())
def _pair_attention_backward(
    grad_numerator: Tensor,
    grad_denominator: Tensor,
    row_ptr: Tensor,
    columns: Tensor,
    column_ptr: Tensor,
    rows: Tensor,
    order: Tensor,
    values: Tensor,
    magnitudes: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    absolute: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    grads, pattern = (grad_numerator, grad_denominator), (row_ptr, columns, column_ptr, rows, order)
    inputs = (values, magnitudes, q, k, v)
    if not compiled(*grads, *inputs):
        return reference.pair_attention_backward(*grads, *pattern, *inputs, absolute)
    from topomask.ops.pair_attention import numba

    return numba.pair_attention_backward(*grads, row_ptr, columns, *inputs, absolute)


@_pair_attention_backward.register_fake
def _(*args: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in args[7:12])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.absolute = inputs[-1]
    ctx.save_for_backward(*inputs[:-1])


def _backward(ctx: Any, grad_numerator: Tensor, grad_denominator: Tensor) -> tuple[Tensor | None, ...]:
    grads = _pair_attention_backward(grad_numerator, grad_denominator, *ctx.saved_tensors, ctx.absolute)
    return (None,) * _PATTERN + tuple(grads) + (None,)


_pair_attention.register_autograd(_backward, setup_context=_save)


def pair_attention(
    pattern: Pattern, values: Tensor, magnitudes: Tensor | None, q: Tensor, k: Tensor, v: Tensor, absolute: bool
) -> tuple[Tensor, Tensor]:
    """Sums over the entries (i, j) of a pattern: of value times score times v, and of magnitude times score.

    Args:
        pattern: Where the mask has entries, [R, N].
        values: Its entries, [P].
        magnitudes: Those of the normaliser, [P]. Default: ``values``.
        q: Query features, [B, R, M].
        k: Key features, [B, N, M].
        v: Values, [B, N, D].
        absolute: Whether the normaliser takes scores of absolute features.

    Returns:
        Numerator [B, R, D] and denominator [B, R].
    """
    own = values.new_empty(0) if magnitudes is None else magnitudes
    return _pair_attention(*pattern, values, own, q, k, v, absolute)
