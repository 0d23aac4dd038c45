"""Dense attention and its gradient in torch, with the scores of a few inputs at a time.

Scores of a whole batch would be written to fresh memory, read again in every step, and saved for the gradient. Those of
a few inputs stay in the cache, and recomputing them is cheaper than saving them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from topomask.ops.dense_attention import Attention
from topomask.ops.quotient import without_zeros

# Scores of a chunk on the CPU; other devices use one chunk. Memory of larger chunks would be paged in at every call.
_SCORES_PER_CHUNK = 1 << 18
# A product with fewer columns takes three to four times as long as its transpose, which has fewer rows.
_MIN_COLUMNS = 16


def attend(attention: Attention) -> tuple[Tensor, Tensor]:
    """Return the result [B, H, N_q, D], and its normaliser [B, H, N_q, 1]."""
    _, _, _, weights, magnitudes, normalize = attention
    q, k, v = (x.flatten(0, 1).contiguous() for x in attention[:3])
    out = q.new_empty(*q.shape[:-1], v.shape[-1])
    denominator = q.new_ones(*q.shape[:-1], 1)
    for part, scores, other in _chunks(attention, buffers=1 if magnitudes is None else 2):
        torch.bmm(q[part], k[part].mT, out=scores.flat)
        if normalize and magnitudes is not None:
            torch.mul(scores.by_head, magnitudes, out=other.by_head)
            torch.sum(other.flat, -1, keepdim=True, out=denominator[part])
        scores.by_head.mul_(weights)
        if normalize and magnitudes is None:
            torch.sum(scores.flat, -1, keepdim=True, out=denominator[part])
        _product(scores.flat, v[part], out[part])
    if normalize:
        out.div_(without_zeros(denominator))
    shape = attention.q.shape[:-1]
    return out.view(*shape, v.shape[-1]), denominator.view(*shape, 1)


def attend_backward(
    attention: Attention, grad: Tensor, fall: Tensor | None, wanted: Collection[str]
) -> dict[str, Tensor]:
    """Return gradients by name.

    Args:
        attention: Inputs of attention.
        grad: Gradient of the numerator, [B, H, N_q, D].
        fall: Gradient of the normaliser, [B, H, N_q, 1], or None.
        wanted: Which gradients are needed; those of weights and magnitudes are computed only then.
    """
    weights, magnitudes = attention.weights, attention.magnitudes
    grad, q, k, v = (x.flatten(0, 1).contiguous() for x in (grad, *attention[:3]))
    falls = None if fall is None else fall.flatten(0, 1)
    grad_q, grad_k, grad_v = (torch.empty_like(x) for x in (q, k, v))
    heads = (attention.q.shape[1], *weights.shape[1:])
    grads = {name: weights.new_zeros(heads) for name in ("weights", "magnitudes") if name in wanted}
    for part, scores, slopes in _chunks(attention, buffers=2):
        torch.bmm(q[part], k[part].mT, out=scores.flat)
        torch.bmm(grad[part], v[part].mT, out=slopes.flat)
        if falls is not None and magnitudes is None:
            slopes.flat.add_(falls[part])
        if "weights" in wanted:
            _accumulate(grads["weights"], slopes.by_head, scores.by_head)
        slopes.by_head.mul_(weights)
        if falls is not None and magnitudes is not None:
            fall_by_head = falls[part].view(*slopes.by_head.shape[:3], 1)
            slopes.by_head.addcmul_(fall_by_head, magnitudes)
            if "magnitudes" in wanted:
                _accumulate(grads["magnitudes"], fall_by_head, scores.by_head)
        scores.by_head.mul_(weights)
        _product(slopes.flat, k[part], grad_q[part])
        _product(slopes.flat.mT, q[part], grad_k[part])
        _product(scores.flat.mT, grad[part], grad_v[part])
    if len(weights) != heads[0]:
        # All heads share one mask.
        grads = {name: total.sum(0, keepdim=True) for name, total in grads.items()}
    found = {"q": grad_q, "k": grad_k, "v": grad_v}
    return grads | {name: x.view(getattr(attention, name).shape) for name, x in found.items()}


class _Scores(NamedTuple):
    """Memory for the scores of some inputs, with two views."""

    flat: Tensor  # [b * H, N_q, N_k]
    by_head: Tensor  # [b, H, N_q, N_k]


def _chunks(attention: Attention, buffers: int) -> Iterator[tuple[slice, _Scores, _Scores]]:
    """Yield parts of the batch, flattened with heads, and memory for one or two sets of scores, which parts reuse."""
    (batch, heads, num_queries, _), num_keys = attention.q.shape, attention.k.shape[2]
    size = max(1, heads * num_queries * num_keys)
    step = min(batch, max(1, _SCORES_PER_CHUNK // size)) if attention.q.device.type == "cpu" else batch
    memory = [attention.q.new_empty(step, heads, num_queries, num_keys) for _ in range(buffers)]
    for start in range(0, batch, max(1, step)):
        count = min(step, batch - start)
        scores = [_Scores(x[:count].flatten(0, 1), x[:count]) for x in memory]
        yield slice(start * heads, (start + count) * heads), scores[0], scores[-1]


def _product(first: Tensor, second: Tensor, out: Tensor) -> None:
    """Multiply matrices, into contiguous memory."""
    if out.shape[-1] < _MIN_COLUMNS and out.device.type == "cpu":
        out.copy_(torch.bmm(second.mT, first.mT).mT)
    else:
        torch.bmm(first, second, out=out)


def _accumulate(total: Tensor, first: Tensor, second: Tensor) -> None:
    """Add elementwise products, summed over inputs, with one pass over the total per input."""
    for one, other in zip(first, second, strict=True):
        total.addcmul_(one, other)
