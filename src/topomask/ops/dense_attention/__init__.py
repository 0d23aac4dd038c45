"""Linear attention with a dense mask, some inputs at a time, so that scores stay in the cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from topomask.ops.backend import in_float32
from topomask.ops.dense_attention import chunks
from topomask.ops.quotient import quotient_backward


@torch.library.custom_op("topomask::dense_attention", mutates_args=())
def _dense_attention(
    q: Tensor, k: Tensor, v: Tensor, weights: Tensor, sizes: Tensor, normalize: bool
) -> tuple[Tensor, Tensor]:
    return chunks.attend(q, k, v, weights, sizes if len(sizes) else None, normalize)


@_dense_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, weights: Tensor, sizes: Tensor, normalize: bool) -> tuple[Tensor, Tensor]:
    return q.new_empty(*q.shape[:-1], v.shape[-1]), q.new_empty(*q.shape[:-1], 1)


@torch.library.custom_op("topomask::dense_attention_backward", mutates_args=())
def _dense_attention_backward(
    grad: Tensor,
    out: Tensor,
    denominator: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: Tensor,
    sizes: Tensor,
    normalize: bool,
    learn: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    share, fall = quotient_backward(grad, out, denominator) if normalize else (grad, None)
    return chunks.attend_backward(share, fall, q, k, v, weights, sizes, learn)


@_dense_attention_backward.register_fake
def _(*args: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in args[3:8])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output, *inputs[:5])
    ctx.normalize = inputs[5]
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    """The denominator is returned for this function alone: nothing flows back through it."""
    if grad is None:
        return (None,) * 6
    learn = bool(ctx.needs_input_grad[3] or ctx.needs_input_grad[4])
    return *_dense_attention_backward(grad, *ctx.saved_tensors, ctx.normalize, learn), None


_dense_attention.register_autograd(_backward, setup_context=_save)
in_float32(_dense_attention)


def dense_attention(
    q: Tensor, k: Tensor, v: Tensor, weights: Tensor, sizes: Tensor | None = None, *, normalize: bool = True
) -> Tensor:
    r"""Linear attention :math:`\sum_j M_{ij}\,q_i^\top k_j\,v_j \big/ \sum_j |M|_{ij}\,q_i^\top k_j`.

    Args:
        q: Features of queries, [B, H, N_q, M].
        k: Features of keys, [B, H, N_k, M].
        v: Values, [B, H, N_k, D].
        weights: The mask M, [H, N_q, N_k] or [1, N_q, N_k].
        sizes: What the normaliser takes instead of it, same shape. Default: the mask.
        normalize: Whether to divide by the normaliser; 0 where it is 0.

    Returns:
        [B, H, N_q, D].
    """
    none = weights.new_empty(0, 0, 0)
    return _dense_attention(q, k, v, weights, none if sizes is None else sizes, normalize)[0]
