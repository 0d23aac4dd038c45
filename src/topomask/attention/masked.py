"""What linear and softmax attention do alike with a mask: checks, the plan, sums over its pairs, and dropout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from topomask.attention.inputs import Tokens, prepare
from topomask.attention.plan import Kernel, Plan, Strategy, plan_attention
from topomask.graph.input import check_nodes
from topomask.masks.entries import PairSums
from topomask.masks.mask import Mask
from topomask.masks.operator import Operator
from topomask.ops.quotient import Attended, to_precision
from topomask.ops.sparse_heads import join_heads


def make_operator(mask: Mask | Operator, query_nodes: Any, key_nodes: Any) -> Operator:
    """The operator of a mask, between the nodes that queries and keys are."""
    if isinstance(mask, Mask):
        operator = mask.on()
    elif isinstance(mask, Operator):
        operator = mask
        operator._check_unchanged()
    else:
        raise ValueError(
            f"`mask` must be a topomask.Mask, or an operator that mask.on(graph) gave, but is a {type(mask).__name__}. "
            "Wrap a matrix in DenseMask."
        )
    if query_nodes is None and key_nodes is None:
        return operator
    queries = None if query_nodes is None else check_nodes(query_nodes, operator.num_queries, "query_nodes")
    keys = None if key_nodes is None else check_nodes(key_nodes, operator.num_keys, "key_nodes")
    return operator.select(queries, keys)


def prepare_for(
    operator: Operator, q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None, dropout_p: float
) -> Tokens:
    """Checked inputs."""
    inputs = prepare(q, k, v, key_padding_mask, torch.float64 if operator._needs_float64 else torch.float32)
    if operator.num_heads not in (1, q.shape[-3]):
        raise ValueError(f"`mask` must have one head or the {q.shape[-3]} of `q`, but has {operator.num_heads}.")
    if (q.shape[-2], k.shape[-2]) != (operator.num_queries, operator.num_keys):
        raise ValueError(
            f"`mask` is for {operator.num_queries} queries and {operator.num_keys} keys, but `q` has {q.shape[-2]} and "
            f"`k` has {k.shape[-2]}. Say with query_nodes and key_nodes which nodes they are, or use mask.on(graph)."
        )
    if not 0 <= dropout_p < 1:
        raise ValueError(f"`dropout_p` must lie in [0, 1), but is {dropout_p}.")
    return inputs


def make_plan(
    inputs: Tokens, operator: Operator, num_features: int, strategy: Strategy, kernel: Kernel, dropout_p: float
) -> Plan:
    """The plan for checked inputs."""
    batch, heads = inputs.q.shape[:2]
    width = inputs.v.shape[-1]
    return plan_attention(
        operator, num_features, width, batch, heads, strategy=strategy, kernel=kernel, dropout=dropout_p > 0
    )


def attend_pairs(
    operator: Operator,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_key: Tensor | None,
    sums: PairSums,
    dropout_p: float,
) -> Attended:
    """Attention over the entries of an operator."""
    if is_key is not None:
        is_key = is_key[..., 0].expand(*k.shape[:2], -1)
    if dropout_p == 0 or not q.shape[:2].numel():
        return operator.attend_pairs(q, k, v, sums, is_key)
    return _drop_pairs(operator, q, k, v, is_key, sums, dropout_p)


def _drop_pairs(
    operator: Operator, q: Tensor, k: Tensor, v: Tensor, is_key: Tensor | None, sums: PairSums, dropout_p: float
) -> Attended:
    """With dropout the weights of all pairs are formed, for one input after the other."""
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

    results = [attend(number) for number in range(len(queries))]
    out, total = (torch.stack(parts) for parts in zip(*results, strict=True))
    return Attended(out.reshape(*q.shape[:3], v.shape[-1]), total.detach())


def drop(weights: Tensor, dropout_p: float) -> Tensor:
    """Weights with some of them dropped."""
    return F.dropout(weights, dropout_p) if dropout_p > 0 else weights
