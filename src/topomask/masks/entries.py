"""The entries of a sparse operator, and what is done with them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from topomask.ops.pair_attention import pair_attention
from topomask.ops.quotient import Attended, to_precision
from topomask.ops.sparse_heads import join_heads
from topomask.ops.sparse_product import Pattern


class Entries(NamedTuple):
    """The nonzero entries of an operator with H heads, N_q queries and N_k keys.

    Either all heads share one pattern [N_q, N_k], and V = H; or every head has its own, the pattern [H * N_q, H * N_k]
    is block-diagonal over heads, and V = 1.
    """

    pattern: Pattern
    values: Tensor  # [V, P]
    magnitudes: Tensor  # [V, P], the entries of `magnitude()`; the same tensor as `values` where they are equal


class PairSums(NamedTuple):
    """What attention sums over pairs of query and key."""

    softmax: bool = False  # exponentials of scores, or scores
    magnitudes: bool = False  # whether the normaliser takes the magnitude of the mask
    absolute: bool = False  # whether it takes absolute features
    normalize: bool = True


def attend_entries(
    entries: Entries, num_heads: int, q: Tensor, k: Tensor, v: Tensor, sums: PairSums, is_key: Tensor | None
) -> Attended:
    """Attention [B, H, N_q, D] over the entries of an operator, and its normaliser.

    Args:
        entries: The entries.
        num_heads: Heads of the operator.
        q: Queries, or their features, [B, H, N_q, M].
        k: Keys, or their features, [B, H, N_k, M].
        v: Values, [B, H, N_k, D].
        sums: What is summed.
        is_key: Which keys count in softmax attention, [B, H, N_k]. Default: all.
    """
    pattern, values, magnitudes = entries
    separate = None if magnitudes is values or not sums.magnitudes else to_precision(magnitudes, v.dtype)
    shape = (*q.shape[:3], v.shape[-1])
    (q, k, v), is_key = join_heads((q, k, v), is_key, num_heads, len(pattern.row_ptr) - 1, len(pattern.column_ptr) - 1)
    out, total = pair_attention(
        pattern,
        to_precision(values, v.dtype),
        separate,
        q,
        k,
        v,
        is_key=is_key,
        softmax=sums.softmax,
        absolute=sums.absolute,
        normalize=sums.normalize,
    )
    return Attended(out.reshape(shape), total)
