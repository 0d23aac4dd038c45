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

# The fewest entries per row for which attention in tiles is worth computing its layout.
MIN_ENTRIES_PER_ROW = 24
# Queries of a tile, and how many of them must see a key for it to be processed in all lanes.
LANES, MIN_LANES = 16, 2
# Used instead of minus infinity in kernels.
LOWEST = -1e30
# The score of an entry that is 0, but may be learnable, still matters for the gradient. Its exponent may exceed the
# row's weighted maximum by this much if the largest magnitude is 1, and by at most half of the largest exponent if that
# is smaller: sums of such powers, times values, must stay finite.
MAX_EXPONENT = 40.0


def largest_exponent(dtype: torch.dtype) -> float:
    """Return an exponent whose power is just finite, with some headroom for sums.

    Powers of softmax attention are exp(score - shift), where the shift of a row is the largest score + log(magnitude).
    In the shift, logarithms are clamped from below at minus half of this exponent. So powers stay finite, products of
    them too, and the exponent of a nonzero entry is never clamped. If such small magnitudes dominate, the normaliser of
    the row is small, and attention is computed in float64.
    """
    return 85.0 if dtype == torch.float32 else 700.0


class Attention(NamedTuple):
    """Inputs of attention over entries; item g of the batch uses row g % V of values and magnitudes."""

    pattern: Pattern  # [R, N]
    values: Tensor  # [P] or [V, P]
    magnitudes: Tensor | None  # used by the normaliser instead of values
    q: Tensor  # [G, R, M]
    k: Tensor  # [G, N, M]
    v: Tensor  # [G, N, D]
    is_key: Tensor | None  # [G, N]
    softmax: bool
    absolute: bool
    normalize: bool

    def check(self) -> None:
        """Raise a ValueError unless shapes match."""
        pattern, values, magnitudes, q, k, v, is_key = self[:7]
        check_values("values", values, pattern.columns.shape[0])
        if magnitudes is not None:
            check_shape("magnitudes", magnitudes, *values.shape)
        check_tokens(pattern.row_ptr.shape[0] - 1, pattern.column_ptr.shape[0] - 1, q, k, v, is_key)
        check_heads("values", values, q)


class TileWork(NamedTuple):
    """The work of attention in tiles of ``LANES`` queries."""

    keys: int  # processed in all lanes
    alone: int  # pairs that are processed alone


def estimate_tiles(query: Pattern, key: Pattern | None) -> TileWork | None:
    """Estimate the work of attention in tiles over a pattern, or its product with that of keys; None without Numba."""
    if not compiled(query.columns):
        return None
    from topomask.ops.pair_attention import numba

    return TileWork(*numba.estimate_tiles(query, key))


def count_tiles(pairs: Tensor) -> TileWork | None:
    """Count the work of attention in tiles over a dense pattern [V, R, N], with rows as given; None without Numba."""
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
    """Raise a ValueError unless queries, keys and values are [G, R, M], [G, N, M] and [G, N, D]."""
    batch, width = q.shape[0], q.shape[-1]
    check_shape("q", q, batch, num_queries, width)
    check_shape("k", k, batch, num_keys, width)
    check_shape("v", v, batch, num_keys, v.shape[-1])
    if is_key is not None:
        check_shape("is_key", is_key, batch, num_keys)


def check_heads(name: str, values: Tensor, q: Tensor) -> None:
    """Raise a ValueError unless the batch is a multiple of the number of heads of ``values``, [P] or [V, P]."""
    if values.ndim == 2 and len(q) % len(values):
        raise ValueError(
            f"`{name}` has shape {tuple(values.shape)}, values of {len(values)} heads, so the batch must be a multiple "
            f"of {len(values)} items, but `q` has shape {tuple(q.shape)}. Flatten a tensor [B, {len(values)}, N, M]."
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
    r"""Attention :math:`\sum_j M_{ij}\,s_{ij}\,v_j \big/ \sum_j |M|_{ij}\,s_{ij}` over the entries of a pattern.

    Args:
        pattern: Pattern of the mask, [R, N].
        values: Entries M of the mask, [P]; or [V, P] for V heads that share the pattern. Item g of the batch uses row
            g % V, so inputs [B, H, N, D] flattened to [B * H, N, D] go with values [H, P].
        magnitudes: Entries |M| of the normaliser, in the shape of ``values``. Default: ``values``.
        q: Queries, or their features, [G, R, M].
        k: Keys, or their features, [G, N, M].
        v: Values, [G, N, D].
        is_key: Which keys softmax attention uses, [G, N]. Default: all.
        softmax: Whether s is the exponential of the score, instead of the score :math:`q_i^\top k_j` itself.
        absolute: Whether the normaliser uses scores of absolute features.
        normalize: Whether to divide by the normaliser; the result is 0 where it is 0.

    Returns:
        The result, [G, R, D], and the normaliser, [G, R], which softmax attention returns up to a factor per row.
    """
    attention = Attention(pattern, values, magnitudes, q, k, v, is_key, softmax, absolute, normalize)
    return Attended(*_pair_attention.outputs(attention))
