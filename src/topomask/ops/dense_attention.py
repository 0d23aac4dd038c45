"""Linear attention with a dense mask and its gradient, in torch, with the scores of a few inputs at a time.

Scores of a whole batch would be written to fresh memory, read again by every step, and kept for the gradient. Those of
a few inputs stay in the cache, and computing them again costs less than keeping them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from topomask.ops.quotient import quotient_backward
from topomask.ops.registration import Op

# Scores of a chunk on the CPU; elsewhere there is one chunk.
_SCORES_PER_CHUNK = 1 << 20
# A product with fewer columns takes three to four times as long as its transpose, which has fewer rows.
_MIN_COLUMNS = 16


class Attention(NamedTuple):
    """What dense attention takes."""

    q: Tensor  # [B, H, N_q, M]
    k: Tensor  # [B, H, N_k, M]
    v: Tensor  # [B, H, N_k, D]
    weights: Tensor  # [H, N_q, N_k] or [1, N_q, N_k]
    magnitudes: Tensor | None  # what the normaliser takes instead of weights
    normalize: bool


def _attend(attention: Attention) -> tuple[Tensor, Tensor]:
    """The result [B, H, N_q, D], and its normaliser [B, H, N_q, 1], infinite where there is nothing."""
    _, _, _, weights, magnitudes, normalize = attention
    q, k, v = (x.contiguous() for x in attention[:3])
    out = q.new_empty(*q.shape[:-1], v.shape[-1])
    denominator = q.new_ones(*q.shape[:-1], 1)
    for part, scores, other in _chunks(q, k, buffers=1 if magnitudes is None else 2):
        _product(q[part], k[part].mT, scores)
        if normalize and magnitudes is not None:
            denominator[part] = torch.mul(scores, magnitudes, out=other).sum(-1, keepdim=True)
        scores.mul_(weights)
        if normalize and magnitudes is None:
            denominator[part] = scores.sum(-1, keepdim=True)
        _product(scores, v[part], out[part])
    if normalize:
        denominator.masked_fill_(denominator == 0, torch.inf)
        out.div_(denominator)
    return out, denominator


def _attend_backward(
    attention: Attention, grad: Tensor, fall: Tensor | None, wanted: Collection[str]
) -> dict[str, Tensor]:
    """Gradients by name.

    Args:
        attention: What was attended to.
        grad: Gradient in the numerator, [B, H, N_q, D].
        fall: Gradient in the normaliser, [B, H, N_q, 1], where there is one.
        wanted: Which gradients are asked for; those of weights and magnitudes are not computed in vain.
    """
    weights, magnitudes = attention.weights, attention.magnitudes
    grad, q, k, v = (x.contiguous() for x in (grad, *attention[:3]))
    grads = {name: torch.empty_like(x) for name, x in (("q", q), ("k", k), ("v", v))}
    heads = (q.shape[1], *weights.shape[1:])
    grads |= {name: weights.new_zeros(heads) for name in ("weights", "magnitudes") if name in wanted}
    for part, scores, slopes in _chunks(q, k, buffers=2):
        _product(q[part], k[part].mT, scores)
        _product(grad[part], v[part].mT, slopes)
        if fall is not None and magnitudes is None:
            slopes.add_(fall[part])
        if "weights" in wanted:
            _accumulate(grads["weights"], slopes, scores)
        slopes.mul_(weights)
        if fall is not None and magnitudes is not None:
            slopes.addcmul_(fall[part], magnitudes)
            if "magnitudes" in wanted:
                _accumulate(grads["magnitudes"], fall[part], scores)
        scores.mul_(weights)
        _product(slopes, k[part], grads["q"][part])
        _product(slopes.mT, q[part], grads["k"][part])
        _product(scores.mT, grad[part], grads["v"][part])
    if len(weights) != q.shape[1]:
        # One mask serves all heads.
        for name in {"weights", "magnitudes"} & set(wanted):
            grads[name] = grads[name].sum(0, keepdim=True)
    return grads


def _chunks(q: Tensor, k: Tensor, buffers: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Parts of the batch, with memory for one or two sets of their scores, which every part uses again."""
    batch, heads, num_queries, _ = q.shape
    size = max(1, heads * num_queries * k.shape[2])
    step = min(batch, max(1, _SCORES_PER_CHUNK // size)) if q.device.type == "cpu" else batch
    memory = [q.new_empty(step, heads, num_queries, k.shape[2]) for _ in range(buffers)]
    for start in range(0, batch, max(1, step)):
        count = min(step, batch - start)
        yield slice(start, start + count), memory[0][:count], memory[-1][:count]


def _product(first: Tensor, second: Tensor, out: Tensor) -> None:
    """Products of matrices, into contiguous memory."""
    first, second, out = first.flatten(0, 1), second.flatten(0, 1), out.view(first.shape[:2].numel(), *out.shape[2:])
    if out.shape[-1] < _MIN_COLUMNS and out.device.type == "cpu":
        out.copy_((second.mT @ first.mT).mT)
    else:
        torch.bmm(first, second, out=out)


def _accumulate(total: Tensor, first: Tensor, second: Tensor) -> None:
    """Add products of numbers over inputs, one pass over the total for each."""
    for one, other in zip(first, second, strict=True):
        total.addcmul_(one, other)


def _fake(attention: Attention) -> tuple[Tensor, Tensor]:
    q, v = attention.q, attention.v
    return q.new_empty(*q.shape[:-1], v.shape[-1]), q.new_empty(*q.shape[:-1], 1)


def _backward(
    attention: Attention, outputs: tuple[Tensor, ...], grad: Tensor, wanted: Collection[str]
) -> dict[str, Tensor]:
    out, denominator = outputs
    share, fall = quotient_backward(grad, out, denominator) if attention.normalize else (grad, None)
    return _attend_backward(attention, share, fall, wanted)


_dense_attention = Op(
    "dense_attention",
    Attention,
    _attend,
    _fake,
    gradients=("q", "k", "v", "weights", "magnitudes"),
    backward_kernel=_backward,
)


def dense_attention(
    q: Tensor, k: Tensor, v: Tensor, weights: Tensor, magnitudes: Tensor | None = None, *, normalize: bool = True
) -> Tensor:
    r"""Linear attention :math:`\sum_j M_{ij}\,q_i^\top k_j\,v_j \big/ \sum_j |M|_{ij}\,q_i^\top k_j`.

    Args:
        q: Features of queries, [B, H, N_q, M].
        k: Features of keys, [B, H, N_k, M].
        v: Values, [B, H, N_k, D].
        weights: The mask M, [H, N_q, N_k] or [1, N_q, N_k].
        magnitudes: What the normaliser takes instead of it, same shape. Default: the mask.
        normalize: Whether to divide by the normaliser; 0 where it is 0.

    Returns:
        [B, H, N_q, D].
    """
    return _dense_attention(Attention(q, k, v, weights, magnitudes, normalize))
