"""Linear attention over the entries of a sparse mask; pure torch, one input of the batch after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.sparse_product.reference import sddmm, spmm


def pair_attention(
    row_ptr: Tensor,
    columns: Tensor,
    values: Tensor,
    magnitudes: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    absolute: bool,
) -> tuple[Tensor, Tensor]:
    """Numerator [B, R, D] and denominator [B, R]; ``magnitudes`` is empty where it equals ``values``."""
    weights = magnitudes if len(magnitudes) else values
    row = segments.index(row_ptr)
    numerator, denominator = q.new_zeros(*q.shape[:2], v.shape[2]), q.new_zeros(q.shape[:2])
    for b in range(len(q)):
        scores = sddmm(row_ptr, columns, q[b], k[b])
        numerator[b] = spmm(row_ptr, columns, scores * values, v[b])
        if absolute:
            scores = sddmm(row_ptr, columns, q[b].abs(), k[b].abs())
        denominator[b].index_add_(0, row, scores * weights)
    return numerator, denominator


def pair_attention_backward(
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
    """Gradients in values, magnitudes, q, k and v."""
    own = len(magnitudes) > 0
    weights = magnitudes if own else values
    row = segments.index(row_ptr)
    grad_values, grad_magnitudes = torch.zeros_like(values), torch.zeros_like(magnitudes)
    grad_q, grad_k, grad_v = (torch.zeros_like(x) for x in (q, k, v))
    for b in range(len(q)):
        scores = sddmm(row_ptr, columns, q[b], k[b])
        sizes = sddmm(row_ptr, columns, q[b].abs(), k[b].abs()) if absolute else scores
        through, bare = sddmm(row_ptr, columns, grad_numerator[b], v[b]), grad_denominator[b][row]
        grad_values += scores * through
        (grad_magnitudes if own else grad_values).add_(sizes * bare)
        through, bare, scaled = through * values, bare * weights, scores * values
        if absolute:
            grad_q[b] = spmm(row_ptr, columns, through, k[b])
            grad_q[b] += q[b].sign() * spmm(row_ptr, columns, bare, k[b].abs())
            grad_k[b] = spmm(column_ptr, rows, through[order], q[b])
            grad_k[b] += k[b].sign() * spmm(column_ptr, rows, bare[order], q[b].abs())
        else:
            grad_q[b] = spmm(row_ptr, columns, through + bare, k[b])
            grad_k[b] = spmm(column_ptr, rows, (through + bare)[order], q[b])
        grad_v[b] = spmm(column_ptr, rows, scaled[order], grad_numerator[b])
    return grad_values, grad_magnitudes, grad_q, grad_k, grad_v
