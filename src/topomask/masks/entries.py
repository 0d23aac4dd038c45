"""The entries of sparse operators, and attention over them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.pair_attention import pair_attention
from topomask.ops.quotient import Attended, to_precision
from topomask.ops.sparse_heads import join_heads
from topomask.ops.sparse_product import Pattern

# Length, if it is known in advance, and dtype of a result of a derivation.
Shape = tuple[int | None, torch.dtype]


class Entries(NamedTuple):
    """The nonzero entries of an operator with H heads, N_q queries and N_k keys.

    Either all heads share one pattern [N_q, N_k], and V = H; or every head has its own, the pattern [H * N_q, H * N_k]
    is block-diagonal over heads, and V = 1.
    """

    pattern: Pattern
    values: Tensor  # [V, P]
    magnitudes: Tensor  # [V, P], the entries of `magnitude()`; the same tensor as `values` if they are equal


class PairSums(NamedTuple):
    """What attention sums over pairs of query and key."""

    softmax: bool = False  # exponentials of scores instead of scores
    magnitudes: bool = False  # whether the normaliser uses the magnitude of the mask
    absolute: bool = False  # whether it uses absolute features
    normalize: bool = True


def pattern_shapes(rows: int, columns: int, count: int | None = None, order: torch.dtype = torch.int32) -> list[Shape]:
    """Return the shapes of the tensors of a pattern with ``count`` entries, whose indices have type ``order``."""
    kind = segments.index_type(max(rows, columns) + 1)
    return [(rows + 1, torch.int64), (count, kind), (columns + 1, torch.int64), (count, kind), (count, order)]


def attend_entries(
    entries: Entries, num_heads: int, q: Tensor, k: Tensor, v: Tensor, sums: PairSums, is_key: Tensor | None
) -> Attended:
    """Return attention [B, H, N_q, D] over the entries of an operator; see :meth:`topomask.Operator.attend_pairs`."""
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
