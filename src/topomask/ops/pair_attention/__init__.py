"""Attention over the entries of a sparse mask, linear or softmax, in one pass."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from topomask.ops.backend import compiled, implementation
from topomask.ops.quotient import Attended
from topomask.ops.registration import Op, check_shape, check_values
from topomask.ops.sparse_product import Pattern

# Entries per row from which on attention in tiles is worth its layout.
MIN_ENTRIES_PER_ROW = 24
# Queries of a tile, and how many of them must see a key for it to be taken with all lanes.
LANES, MIN_LANES = 16, 2
# What stands for minus infinity where kernels may not meet it.
LOWEST = -1e30
# Where an entry is 0 but may be learnt, its score still counts in the gradient, with at most this exponent above the
# row's weighted maximum for a largest magnitude of 1, and at most half of the largest exponent for smaller ones: sums
# of such powers, times values, must stay finite.
MAX_EXPONENT = 40.0


def largest_exponent(dtype: torch.dtype) -> float:
    """An exponent whose power is just finite, with room for sums.

    Powers of softmax attention are exp(score - shift), where the shift of a row is the largest score + log(magnitude).
    Logarithms below minus half of this exponent enter the shift as that, so that powers stay finite, and products of
    them too, and the exponent of an entry other than 0 is never cut. Where such small magnitudes decide, the normaliser
    of the row is small, and attention is computed in float64.
    """
    return 85.0 if dtype == torch.float32 else 700.0


class Attention(NamedTuple):
    """What attention over entries takes; item g of the batch has row g % V of values and magnitudes."""

    pattern: Pattern  # [R, N]
    values: Tensor  # [P] or [V, P]
    magnitudes: Tensor | None  # what the normaliser takes instead of values
    q: Tensor  # [G, R, M]
    k: Tensor  # [G, N, M]
    v: Tensor  # [G, N, D]
    is_key: Tensor | None  # [G, N]
    softmax: bool
    absolute: bool
    normalize: bool

    def check(self) -> None:
        """A ValueError where shapes do not fit."""
        pattern, values, magnitudes, q, k, v, is_key = self[:7]
        check_values("values", values, pattern.columns.shape[0])
        if magnitudes is not None:
            check_shape("magnitudes", magnitudes, *values.shape)
        check_tokens(pattern.row_ptr.shape[0] - 1, pattern.column_ptr.shape[0] - 1, q, k, v, is_key)
        check_heads("values", values, q)


class TileWork(NamedTuple):
    """What attention in tiles of ``LANES`` queries does."""

    keys: int  # taken with all lanes
    alone: int  # pairs that are taken alone


def estimate_tiles(query: Pattern, key: Pattern | None) -> TileWork | None:
    """The work of attention in tiles over a pattern, or over the product with features of keys; None without Numba."""
    if not compiled(query.columns):
        return None
    from topomask.ops.pair_attention import numba

    return TileWork(*numba.estimate_tiles(query, key))


def count_tiles(pairs: Tensor) -> TileWork | None:
    """The work of attention in tiles over a dense pattern [V, R, N], rows as they come; None without Numba."""
    if not compiled(pairs):
        return None
    num_tiles = -(-pairs.shape[1] // LANES)
    padded = F.pad(pairs, (0, 0, 0, num_tiles * LANES - pairs.shape[1]))
    lanes = padded.unflatten(1, (num_tiles, LANES)).sum(dim=2)  # [V, tiles, N]
    together = lanes >= MIN_LANES
    return TileWork(int(together.sum()), int(lanes[~together].sum()))


def _forward(attention: Attention) -> tuple[Tensor, Tensor]:
    return implementation(__name__, attention.values, attention.q).pair_attention(attention)


def _fake(attention: Attention) -> tuple[Tensor, Tensor]:
    q, v = attention.q, attention.v
    return q.new_empty(*q.shape[:2], v.shape[2]), q.new_empty(q.shape[:2])


def _backward(
    attention: Attention, outputs: tuple[Tensor, ...], grad: Tensor, wanted: Collection[str]
) -> dict[str, Tensor]:
    backend = implementation(__name__, attention.values, grad)
    return backend.pair_attention_backward(attention, outputs, grad, wanted)


_pair_attention = Op(
    "pair_attention",
    Attention,
    _forward,
    _fake,
    gradients=("values", "magnitudes", "q", "k", "v"),
    backward_kernel=_backward,
    items=("q", "k", "v", "is_key"),
)


def check_tokens(num_queries: int, num_keys: int, q: Tensor, k: Tensor, v: Tensor, is_key: Tensor | None) -> None:
    """A ValueError unless queries, keys and values are [G, R, M], [G, N, M] and [G, N, D]."""
    batch, width = q.shape[0], q.shape[-1]
    check_shape("q", q, batch, num_queries, width)
    check_shape("k", k, batch, num_keys, width)
    check_shape("v", v, batch, num_keys, v.shape[-1])
    if is_key is not None:
        check_shape("is_key", is_key, batch, num_keys)


def check_heads(name: str, values: Tensor, q: Tensor) -> None:
    """A ValueError unless the items of a batch share out evenly among the heads of ``values``, [P] or [V, P]."""
    if values.ndim == 2 and len(q) % len(values):
        raise ValueError(
            f"`{name}` has shape {tuple(values.shape)}, values of {len(values)} heads, so the batch must be a multiple "
            f"of {len(values)} items, but `q` has shape {tuple(q.shape)}. Flatten [B, H, N, M] with H = {len(values)}."
        )


def pair_attention(
    pattern: Pattern,
    values: Tensor,
    magnitudes: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    is_key: Tensor | None = None,
    softmax: bool = False,
    absolute: bool = False,
    normalize: bool = True,
) -> Attended:
    r"""Sums over the entries (i, j) of a pattern: of value s_ij v_j, over the sum of magnitude |s_ij|.

    Args:
        pattern: Where the mask has entries, [R, N].
        values: Its entries, [P]; or [V, P] for V heads that share the pattern. Item g of the batch has row g % V, so
            inputs [B, H, N, D] flattened to [B * H, N, D] go with values [H, P].
        magnitudes: Those of the normaliser, in the shape of ``values``. Default: ``values``.
        q: Queries, or their features, [G, R, M].
        k: Keys, or their features, [G, N, M].
        v: Values, [G, N, D].
        is_key: Which keys count in softmax attention, [G, N]. Default: all.
        softmax: Whether s is the exponential of a score, or the score itself.
        absolute: Whether the normaliser takes scores of absolute features.
        normalize: Whether to divide by the normaliser; 0 where it is 0.

    Returns:
        The result, [G, R, D], and the normaliser, [G, R]; for softmax attention up to a factor.
    """
    attention = Attention(pattern, values, magnitudes, q, k, v, is_key, softmax, absolute, normalize)
    return Attended(*_pair_attention.outputs(attention))
