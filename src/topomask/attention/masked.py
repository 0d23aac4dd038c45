"""Steps that linear and softmax attention with a mask share: checks, sums over pairs, and dropout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from topomask.attention.inputs import Tokens, prepare
from topomask.graph.input import check_nodes
from topomask.masks.entries import PairSums
from topomask.masks.mask import Mask, not_a_mask
from topomask.masks.operator import Operator
from topomask.ops.quotient import Attended, to_precision
from topomask.ops.sparse_heads import join_heads
from topomask.support.checks import check_probabilities


def make_operator(mask: Mask | Operator, query_nodes: Any, key_nodes: Any) -> Operator:
    """Return the operator of a mask, restricted to the nodes of queries and keys."""
    if isinstance(mask, Mask):
        operator = mask.on()
    elif isinstance(mask, Operator):
        operator = mask
        operator._check_unchanged()
    else:
        raise not_a_mask(mask, "topomask.Mask or an Operator")
    if query_nodes is None and key_nodes is None:
        return operator
    queries = None if query_nodes is None else check_nodes(query_nodes, operator.num_queries, "query_nodes")
    keys = None if key_nodes is None else check_nodes(key_nodes, operator.num_keys, "key_nodes")
    return operator.select(queries, keys)


def prepare_for(
    operator: Operator, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None, dropout_p: float
) -> Tokens:
    """Check and prepare inputs for attention with an operator."""
    inputs = prepare(q, k, v, key_padding_mask, torch.float64 if operator._needs_float64 else torch.float32)
    if operator.num_heads not in (1, q.shape[-3]):
        raise ValueError(
            f"`mask` must have one head or as many as `q`, {q.shape[-3]}, but has {operator.num_heads} heads. "
            "Queries, keys and values have shape [..., H, N, D]: heads before nodes."
        )
    if (q.shape[-2], k.shape[-2]) != (operator.num_queries, operator.num_keys):
        raise ValueError(
            f"`mask` is for {operator.num_queries} queries and {operator.num_keys} keys, but `q` has {q.shape[-2]} and "
            f"`k` has {k.shape[-2]}. Pass their nodes as query_nodes and key_nodes, or use mask.on(graph)."
        )
    check_probabilities(dropout_p=dropout_p)
    return inputs


def attend_pairs(
    operator: Operator, q: Tensor, k: Tensor, v: Tensor, is_key: Tensor | None, sums: PairSums, dropout_p: float
) -> Attended:
    """Attend over the entries of an operator."""
    if is_key is not None:
        is_key = is_key[..., 0].expand(*k.shape[:2], -1)
    if dropout_p == 0 or not q.shape[:2].numel():
        return operator.attend_pairs(q, k, v, sums, is_key)
    return _drop_pairs(operator, q, k, v, is_key, sums, dropout_p)


def _drop_pairs(
    operator: Operator, q: Tensor, k: Tensor, v: Tensor, is_key: Tensor | None, sums: PairSums, dropout_p: float
) -> Attended:
    """With dropout, compute the weights of all pairs, one input at a time."""
    from topomask.ops.pair_attention import reference as pairs

    pattern, values, magnitudes = operator.entries()
    values = to_precision(values, v.dtype)
    magnitudes = to_precision(magnitudes, v.dtype) if sums.magnitudes else values
    sizes = (len(ptr) - 1 for ptr in (pattern.row_ptr, pattern.column_ptr))
    (queries, keys, rows), is_key = join_heads((q, k, v), is_key, operator.num_heads, *sizes)
    flags = (sums.softmax, sums.absolute, sums.normalize)

    def attend(number: int) -> tuple[Tensor, Tensor]:
        keep, head = None if is_key is None else is_key[number], number % len(values)
        one = (values[head], magnitudes[head], queries[number], keys[number], rows[number], keep)
        return pairs.attend(pattern, *one, *flags, drop=lambda x: F.dropout(x, dropout_p))

    out, total = (torch.stack(parts) for parts in zip(*map(attend, range(len(queries))), strict=True))
    return Attended(out.reshape(*q.shape[:3], v.shape[-1]), total.detach())


def drop(weights: Tensor, dropout_p: float) -> Tensor:
    """Drop weights at random; without dropout, return them without a copy."""
    return F.dropout(weights, dropout_p) if dropout_p > 0 else weights
