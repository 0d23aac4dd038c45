"""Dense masked linear attention and its gradient in torch, with the scores of a few inputs at a time.

Scores of a whole batch would be written to fresh memory, read again by every step, and kept for the gradient. Those of
a few inputs stay in the cache, and computing them again costs less than keeping them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

# Scores of a chunk on the CPU; elsewhere there is one chunk.
_SCORES_PER_CHUNK = 1 << 20


def attend(
    q: Tensor, k: Tensor, v: Tensor, weights: Tensor, sizes: Tensor | None, normalize: bool
) -> tuple[Tensor, Tensor]:
    """The result [B, H, N_q, D], and its normaliser [B, H, N_q, 1], infinite where there is nothing."""
    q, k, v = (x.contiguous() for x in (q, k, v))
    out = q.new_empty(*q.shape[:-1], v.shape[-1])
    denominator = q.new_ones(*q.shape[:-1], 1)
    for part, scores, other in _chunks(q, k, buffers=1 if sizes is None else 2):
        _product(q[part], k[part].mT, scores)
        if normalize and sizes is not None:
            denominator[part] = torch.mul(scores, sizes, out=other).sum(-1, keepdim=True)
        scores.mul_(weights)
        if normalize and sizes is None:
            denominator[part] = scores.sum(-1, keepdim=True)
        _product(scores, v[part], out[part])
    if normalize:
        denominator.masked_fill_(denominator == 0, torch.inf)
        out.div_(denominator)
    return out, denominator


def attend_backward(
    share: Tensor, fall: Tensor | None, q: Tensor, k: Tensor, v: Tensor, weights: Tensor, sizes: Tensor, learn: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients in q, k, v, weights and sizes, given those in the numerator and in the normaliser.

    Those in weights and sizes, of which there may be none, are 0 unless ``learn``.
    """
    share, q, k, v = (x.contiguous() for x in (share, q, k, v))
    grad_q, grad_k, grad_v = (torch.empty_like(x) for x in (q, k, v))
    grad_weights, grad_sizes = (x.new_zeros(q.shape[1] if len(x) else 0, *x.shape[1:]) for x in (weights, sizes))
    for part, scores, slopes in _chunks(q, k, buffers=2):
        _product(q[part], k[part].mT, scores)
        _product(share[part], v[part].mT, slopes)
        if fall is not None and not len(sizes):
            slopes.add_(fall[part])
        if learn:
            _accumulate(grad_weights, slopes, scores)
        slopes.mul_(weights)
        if fall is not None and len(sizes):
            slopes.addcmul_(fall[part], sizes)
            if learn:
                _accumulate(grad_sizes, fall[part], scores)
        scores.mul_(weights)
        _product(slopes, k[part], grad_q[part])
        _product(slopes.mT, q[part], grad_k[part])
        _product(scores.mT, share[part], grad_v[part])
    if len(weights) != q.shape[1]:
        # One mask serves all heads.
        grad_weights, grad_sizes = (x.sum(0, keepdim=True) if len(x) else x for x in (grad_weights, grad_sizes))
    return grad_q, grad_k, grad_v, grad_weights, grad_sizes


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
    torch.bmm(first.flatten(0, 1), second.flatten(0, 1), out=out.view(first.shape[:2].numel(), *out.shape[2:]))


def _accumulate(total: Tensor, first: Tensor, second: Tensor) -> None:
    """Add products of numbers over inputs, one pass over the total for each."""
    for one, other in zip(first, second, strict=True):
        total.addcmul_(one, other)
