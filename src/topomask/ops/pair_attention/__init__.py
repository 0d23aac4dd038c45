"""Attention over the entries of a sparse mask, linear or softmax, in one pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from topomask.ops.backend import compiled, in_float32
from topomask.ops.pair_attention import reference
from topomask.ops.sparse_product import Pattern

_PATTERN = 5
# Entries per row from which on attention in tiles is worth its layout.
MIN_ENTRIES_PER_ROW = 24


class TileWork(NamedTuple):
    """What attention in tiles of 16 queries does."""

    keys: int  # taken with all lanes
    alone: int  # pairs that are taken alone


def estimate_tiles(query: Pattern, key: Pattern | None) -> TileWork | None:
    """The work of attention in tiles over a pattern, or over the product with features of keys; None without Numba."""
    if not compiled(query.columns):
        return None
    from topomask.ops.pair_attention import numba

    return TileWork(*numba.estimate_tiles(query, key))


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
    is_key: Tensor,
    softmax: bool,
    absolute: bool,
    normalize: bool,
) -> tuple[Tensor, Tensor]:
    pattern = Pattern(row_ptr, columns, column_ptr, rows, order)
    inputs, flags = (values, magnitudes, q, k, v, is_key), (softmax, absolute, normalize)
    if not compiled(row_ptr, *inputs):
        return reference.pair_attention(pattern, *inputs, *flags)
    from topomask.ops.pair_attention import numba

    return numba.pair_attention(pattern, *inputs, *flags)


@_pair_attention.register_fake
def _(*args: Any) -> tuple[Tensor, Tensor]:
    q, v = args[7], args[9]
    return q.new_empty(q.shape[0], q.shape[1], v.shape[2]), q.new_empty(q.shape[0], q.shape[1])


@torch.library.custom_op("topomask::pair_attention_backward", mutates_args=())
def _pair_attention_backward(
    grad: Tensor,
    out: Tensor,
    denominator: Tensor,
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
    is_key: Tensor,
    softmax: bool,
    absolute: bool,
    normalize: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    pattern = Pattern(row_ptr, columns, column_ptr, rows, order)
    inputs, flags = (values, magnitudes, q, k, v, is_key), (softmax, absolute, normalize)
    if not compiled(grad, *inputs):
        return reference.pair_attention_backward(grad, pattern, *inputs, *flags)
    from topomask.ops.pair_attention import numba

    return numba.pair_attention_backward(grad, out, denominator, pattern, *inputs, *flags)


@_pair_attention_backward.register_fake
def _(*args: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in args[8:13])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.flags = inputs[-3:]
    ctx.save_for_backward(*output, *inputs[:-3])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    """The denominator is returned for this function alone: nothing flows back through it."""
    if grad is None:
        return (None,) * 14
    grads = _pair_attention_backward(grad, *ctx.saved_tensors, *ctx.flags)
    return (None,) * _PATTERN + tuple(grads) + (None,) * 4


_pair_attention.register_autograd(_backward, setup_context=_save)
in_float32(_pair_attention)


def pair_attention(
    pattern: Pattern,
    values: Tensor,
    magnitudes: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    is_key: Tensor | None = None,
    softmax: bool = False,
    absolute: bool = False,
    normalize: bool = True,
) -> Tensor:
    r"""Sums over the entries (i, j) of a pattern: of value s_ij v_j, over the sum of magnitude |s_ij|.

    Args:
        pattern: Where the mask has entries, [R, N].
        values: Its entries, [P].
        magnitudes: Those of the normaliser, [P]. Default: ``values``.
        q: Queries, or their features, [B, R, M].
        k: Keys, or their features, [B, N, M].
        v: Values, [B, N, D].
        is_key: Which keys count in softmax attention, [B, N]. Default: all.
        softmax: Whether s is the exponential of a score, or the score itself.
        absolute: Whether the normaliser takes scores of absolute features.
        normalize: Whether to divide by the normaliser; 0 where it is 0.

    Returns:
        [B, R, D].
    """
    own = values.new_empty(0) if magnitudes is None else magnitudes
    keep = values.new_empty(0, 0, dtype=torch.bool) if is_key is None else is_key
    return _pair_attention(*pattern, values, own, q, k, v, keep, softmax, absolute, normalize)[0]
