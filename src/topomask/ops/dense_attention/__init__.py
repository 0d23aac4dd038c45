"""Linear attention with a dense mask, and its gradient."""

from __future__ import annotations

import types
from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from topomask.ops.backend import implementation
from topomask.ops.quotient import Attended, quotient_backward, without_zeros
from topomask.ops.registration import Op

# The largest sizes at which the compiled kernel is faster than torch: numbers in the tokens of a head, which are read
# repeatedly and must stay in the first-level cache; and entries of a head of the mask, which is rearranged.
_MAX_NUMBERS, _MAX_ENTRIES = 1 << 12, 1 << 16


class Attention(NamedTuple):
    """Inputs of dense attention."""

    q: Tensor  # [B, H, N_q, M]
    k: Tensor  # [B, H, N_k, M]
    v: Tensor  # [B, H, N_k, D]
    weights: Tensor  # [H, N_q, N_k] or [1, N_q, N_k]
    magnitudes: Tensor | None  # used by the normaliser instead of weights
    normalize: bool


def fits(num_queries: int, num_keys: int, width: int, value_dim: int) -> bool:
    """Whether the compiled kernel is faster, for float32 on the CPU."""
    numbers = max(num_queries, num_keys) * max(width, value_dim)
    return numbers <= _MAX_NUMBERS and num_queries * num_keys <= _MAX_ENTRIES


def _implementation(attention: Attention) -> types.ModuleType:
    q, k, v, weights = attention[:4]
    if not fits(q.shape[2], k.shape[2], q.shape[3], v.shape[3]):
        from topomask.ops.dense_attention import reference

        return reference
    return implementation(__name__, q, k, v, weights, dtype=torch.float32)


def _forward(attention: Attention) -> tuple[Tensor, Tensor]:
    return _implementation(attention).attend(attention)


def _fake(attention: Attention) -> tuple[Tensor, Tensor]:
    q, v = attention.q, attention.v
    return q.new_empty(*q.shape[:-1], v.shape[-1]), q.new_empty(*q.shape[:-1], 1)


def _backward(
    attention: Attention, outputs: tuple[Tensor, ...], grad: Tensor, wanted: Collection[str]
) -> dict[str, Tensor]:
    out, total = outputs
    share, fall = quotient_backward(grad, out, without_zeros(total)) if attention.normalize else (grad, None)
    return _implementation(attention).attend_backward(attention, share, fall, wanted)


_dense_attention = Op(
    "dense_attention",
    Attention,
    _forward,
    _fake,
    gradients=("q", "k", "v", "weights", "magnitudes"),
    backward_kernel=_backward,
    items=("q", "k", "v"),
)


def dense_attention(
    q: Tensor, k: Tensor, v: Tensor, weights: Tensor, magnitudes: Tensor | None = None, *, normalize: bool = True
) -> Attended:
    r"""Linear attention :math:`\sum_j M_{ij}\,q_i^\top k_j\,v_j \big/ \sum_j |M|_{ij}\,q_i^\top k_j`.

    Args:
        q: Features of queries, [B, H, N_q, M].
        k: Features of keys, [B, H, N_k, M].
        v: Values, [B, H, N_k, D].
        weights: The mask M, [H, N_q, N_k] or [1, N_q, N_k].
        magnitudes: Weights of the normaliser, of the same shape. Default: the mask.
        normalize: Whether to divide by the normaliser; the result is 0 where it is 0.

    Returns:
        The result, [B, H, N_q, D], and the normaliser, [B, H, N_q, 1].
    """
    batch, heads, num_queries, width = q.shape
    num_keys = k.shape[2]
    if k.shape != (batch, heads, num_keys, width) or v.shape[:3] != k.shape[:3]:
        raise ValueError(
            f"`k` and `v` must have shapes [{batch}, {heads}, N_k, {width}] and [{batch}, {heads}, N_k, D] to match "
            f"`q`, {tuple(q.shape)}, but have {tuple(k.shape)} and {tuple(v.shape)}."
        )
    # One size at a time: the compiler cannot look up a symbolic shape in a tuple of shapes.
    if weights.shape[0] not in (1, heads) or weights.shape[1:] != (num_queries, num_keys):
        raise ValueError(
            f"`weights` must have shape [{heads} or 1, {num_queries}, {num_keys}], but has {tuple(weights.shape)}."
        )
    if magnitudes is not None and magnitudes.shape != weights.shape:
        raise ValueError(
            f"`magnitudes` must have the shape of `weights`, {tuple(weights.shape)}, but has {tuple(magnitudes.shape)}."
        )
    return Attended(*_dense_attention.outputs(Attention(q, k, v, weights, magnitudes, normalize)))
