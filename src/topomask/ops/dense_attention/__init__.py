"""Linear attention with a dense mask, some inputs at a time, so that scores stay in the cache."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor

from topomask.ops.dense_attention import chunks
from topomask.ops.dense_attention.chunks import Attention
from topomask.ops.quotient import quotient_backward
from topomask.ops.registration import Op


def _fake(attention: Attention) -> tuple[Tensor, Tensor]:
    q, v = attention.q, attention.v
    return q.new_empty(*q.shape[:-1], v.shape[-1]), q.new_empty(*q.shape[:-1], 1)


def _backward(
    attention: Attention, outputs: tuple[Tensor, ...], grad: Tensor, wanted: Collection[str]
) -> dict[str, Tensor]:
    out, denominator = outputs
    share, fall = quotient_backward(grad, out, denominator) if attention.normalize else (grad, None)
    return chunks.attend_backward(attention, share, fall, wanted)


_dense_attention = Op(
    "dense_attention",
    Attention,
    chunks.attend,
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
