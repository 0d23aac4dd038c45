"""Attention in tiles of 16 queries, for float32 on the CPU.

Queries with many keys in common share a tile (``layout.py``). A tile visits the union of their keys: keys that at least
two of its queries see are processed eight at a time, in all 16 lanes at once (``vectors.py``), the others pair by pair
(``row_vectors.py``). The weights of a tile (``weights.py``) are packed in advance, or are entries of a pattern, or
products of features, which are computed tile by tile and never stored. A tile processes all items of a batch that have
the same weights, those of a head, one after the other (``forward.py``, ``backward.py``).
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from topomask.ops.backend import MAX_PARTS, arrays, by_head, row_blocks
from topomask.ops.llvm import KEYS
from topomask.ops.pair_attention import LANES
from topomask.ops.tiles.backward import backward_kernel, fold_kernel
from topomask.ops.tiles.forward import forward_kernel
from topomask.ops.tiles.layout import Layout
from topomask.ops.tiles.records import (
    BackwardScratch,
    Entries,
    EntryGradients,
    FeatureGradients,
    Features,
    Numbering,
    Options,
    Packed,
    Results,
    Schedule,
    Scratch,
    Source,
    TokenGradients,
    Tokens,
)
from topomask.ops.tiles.weights import pack_kernel

# The most tiles that process the whole batch together, and the most keys that they have.
_MAX_TOGETHER, _MAX_KEYS_TOGETHER = 8, 4096

_NO_FLOATS = np.zeros((0, 0), np.float32)


class Attention(NamedTuple):
    """Inputs of attention besides the weights."""

    q: Tensor  # [G, R, M]
    k: Tensor  # [G, N, M]
    v: Tensor  # [G, N, D]
    is_key: Tensor | None  # [G, N]
    softmax: bool
    normalize: bool


def _rows(values: Tensor | None) -> np.ndarray:
    """Return values [P] or [V, P] by head; empty for None."""
    return _NO_FLOATS if values is None else by_head(values)


def from_packed(weights: Tensor, magnitudes: Tensor | None) -> Source:
    """Use weights packed by :func:`pack_features`."""
    return Source(len(weights), packed=Packed(_rows(weights), _rows(magnitudes)))


def from_entries(row_ptr: Tensor, slots: np.ndarray, values: Tensor, magnitudes: Tensor | None) -> Source:
    """Use values of the entries of a pattern, [P] or [V, P]."""
    entries = Entries(*arrays(row_ptr), slots, _rows(values), _rows(magnitudes))
    return Source(len(entries.values), entries=entries)


def from_features(
    row_ptr: Tensor,
    columns: Tensor,
    query_values: Tensor,
    query_magnitudes: Tensor | None,
    column_ptr: Tensor,
    rows: Tensor,
    key_values: Tensor,
    key_magnitudes: Tensor | None,
) -> Source:
    """Use products of features of queries, by row, and of keys, by column; values are [P] or [V, P]."""
    features = Features(
        *arrays(row_ptr, columns),
        _rows(query_values),
        _rows(query_magnitudes),
        *arrays(column_ptr, rows),
        _rows(key_values),
        _rows(key_magnitudes),
    )
    return Source(len(features.query_values), features=features)


def _has_magnitudes(source: Source) -> bool:
    """Whether the normaliser uses magnitudes other than the weights."""
    if source.features is not None:
        return len(source.features.query_magnitudes) > 0
    record = source.packed if source.entries is None else source.entries
    assert record is not None
    return len(record.magnitudes) > 0


def _numbering(layout: Layout, features: Features | None, num_keys: int, num_blocks: int) -> Numbering | None:
    if features is None:
        return None
    return Numbering(
        np.full((num_blocks, len(features.column_ptr) - 1), -1, np.int32),
        np.empty((num_blocks, layout.max_columns), np.int32),
        np.empty((num_blocks, num_keys), np.int32),
    )


def _empty(*shape: int) -> np.ndarray:
    return torch.empty(shape, dtype=torch.float32, device="cpu").numpy()


def _scratch(layout: Layout, num_blocks: int, separate_magnitudes: bool, attention: Attention) -> Scratch:
    weights, lanes = layout.max_keys * LANES, LANES
    query, value = (_padded(x.shape[2]) * lanes for x in (attention.q, attention.v))
    all_weights = _together(layout) * weights
    return Scratch(
        weights=_empty(num_blocks, all_weights),
        magnitudes=_empty(num_blocks, all_weights if separate_magnitudes else 0),
        scores=_empty(num_blocks, max(weights, KEYS * lanes)),
        bits=np.empty((num_blocks, weights), np.int32),
        query_rows=_empty(num_blocks, query),
        query_lanes=_empty(num_blocks, query),
        value_rows=_empty(num_blocks, value),
        value_lanes=_empty(num_blocks, value),
        totals=_empty(num_blocks, lanes),
        tops=_empty(num_blocks, lanes),
        caps=_empty(num_blocks, lanes),
        feature_lanes=_empty(num_blocks, layout.max_columns * lanes),
    )


def _backward_scratch(
    layout: Layout, num_blocks: int, separate_magnitudes: bool, attention: Attention
) -> BackwardScratch:
    all_weights = _together(layout) * layout.max_keys * LANES
    query = _padded(attention.q.shape[2]) * LANES
    return BackwardScratch(
        grad_weights=_empty(num_blocks, all_weights),
        grad_magnitudes=_empty(num_blocks, all_weights if separate_magnitudes else 0),
        value_slopes=_empty(num_blocks, KEYS * LANES),
        grad_query_rows=_empty(num_blocks, query),
        grad_query_lanes=_empty(num_blocks, query),
        targets=np.empty((num_blocks, layout.max_keys), np.int32),
        grad_feature_lanes=_empty(num_blocks, layout.max_columns * LANES),
    )


def _together(layout: Layout) -> int:
    """Return how many tiles process the whole batch together: their keys and gradients of keys stay in the cache."""
    return max(1, min(_MAX_TOGETHER, _MAX_KEYS_TOGETHER // max(1, layout.max_keys)))


def _padded(width: int) -> int:
    return -(-width // LANES) * LANES


def as_tokens(q: Tensor, k: Tensor, v: Tensor, is_key: Tensor | None) -> Tokens:
    """Convert tensors into the arrays that kernels take."""
    return Tokens(*arrays(q, k, v), np.zeros((0, 0), np.bool_) if is_key is None else arrays(is_key)[0])


def pack_features(layout: Layout, source: Source, num_keys: int) -> tuple[Tensor, Tensor | None]:
    """Return weights and magnitudes of all tiles, [V, starts[-1] * 16]; magnitudes are None if they are the weights."""
    shape = (source.num_heads, int(layout.tiles.starts[-1]) * LANES)
    separate = _has_magnitudes(source)
    weights = torch.zeros(shape, dtype=torch.float32, device="cpu")
    magnitudes = torch.zeros_like(weights) if separate else None
    blocks = row_blocks(layout.tiles.starts)
    lanes = _empty(len(blocks) - 1, layout.max_columns * LANES)
    numbering = _numbering(layout, source.features, num_keys, len(blocks) - 1)
    packed = Packed(weights.numpy(), _rows(magnitudes))
    pack_kernel(len(blocks) - 1, layout.tiles, source.features, separate, blocks, lanes, numbering, packed)
    return weights, magnitudes


def forward(layout: Layout, source: Source, attention: Attention) -> tuple[Tensor, Tensor]:
    """Attention [G, R, D] and its denominator [G, R]."""
    q, k, v = attention.q, attention.k, attention.v
    out, denominator = q.new_empty(*q.shape[:2], v.shape[2]), q.new_empty(q.shape[:2])
    blocks, separate = row_blocks(layout.tiles.starts), _has_magnitudes(source)
    forward_kernel(
        len(blocks) - 1,
        layout.tiles,
        *source,
        as_tokens(*attention[:4]),
        *((None, True) if attention.softmax else (True, None)),
        Options(attention.normalize, separate),
        Schedule(blocks, _together(layout), layout.tiles.keys[:0]),
        _scratch(layout, len(blocks) - 1, separate, attention),
        _numbering(layout, source.features, k.shape[1], len(blocks) - 1),
        *arrays(out, denominator),
    )
    return out, denominator


class Gradients(NamedTuple):
    """Gradients of q, k and v, and of the source of the weights unless they were packed; of key features by column."""

    q: Tensor
    k: Tensor
    v: Tensor
    source: EntryGradients | FeatureGradients | None


def backward(
    layout: Layout,
    source: Source,
    attention: Attention,
    outputs: tuple[Tensor, ...],
    grad: Tensor,
    wants_source: bool,
) -> Gradients:
    """Return gradients, given the outputs of :func:`forward`; those of the source are undefined if not wanted."""
    q, k, v = attention.q, attention.k, attention.v
    blocks, separate = row_blocks(layout.tiles.starts, MAX_PARTS), _has_magnitudes(source)
    num_blocks = len(blocks) - 1
    grad_q = torch.empty_like(q, memory_format=torch.contiguous_format)
    targets, shared = _share_keys(layout, blocks, k.shape[1])
    sums_k, sums_v = (k.new_zeros(len(x) * (x.shape[1] + len(shared)), _padded(x.shape[2])) for x in (k, v))
    source_grads = _source_gradients(source, num_blocks if wants_source else 0)
    backward_kernel(
        num_blocks,
        layout.tiles,
        *source,
        as_tokens(*attention[:4]),
        *((None, True) if attention.softmax else (True, None)),
        Options(attention.normalize, separate),
        wants_source,
        Results(*arrays(*outputs, grad)),
        Schedule(blocks, _together(layout), targets),
        _scratch(layout, num_blocks, separate, attention),
        _backward_scratch(layout, num_blocks, separate, attention),
        _numbering(layout, source.features, k.shape[1], num_blocks),
        source_grads,
        TokenGradients(*arrays(grad_q, sums_k, sums_v)),
    )
    grad_k, grad_v = (_fold(sums, shared, x) for sums, x in ((sums_k, k), (sums_v, v)))
    return Gradients(grad_q, grad_k, grad_v, source_grads)


def _source_gradients(source: Source, num_blocks: int) -> EntryGradients | FeatureGradients | None:
    """Allocate memory for gradients; zeros are paged in on use, since a block only touches its own neighbourhood."""
    entries, features = source.entries, source.features
    if entries is not None:
        return EntryGradients(_empty(*entries.values.shape), _empty(*entries.magnitudes.shape))
    if features is None:
        return None
    return FeatureGradients(
        _empty(*features.query_values.shape),
        _empty(*features.query_magnitudes.shape),
        np.zeros((num_blocks, *features.key_values.shape), np.float32),
        np.zeros((num_blocks, *features.key_magnitudes.shape), np.float32),
    )


def sum_blocks(parts: np.ndarray) -> np.ndarray:
    """Sum over blocks, in the memory of the first one."""
    total: np.ndarray = parts[0]
    for part in parts[1:]:
        total += part
    return total


def _share_keys(layout: Layout, blocks: np.ndarray, num_keys: int) -> tuple[np.ndarray, np.ndarray]:
    """Assign rows that blocks of tiles add the gradients of keys to, so that no two blocks add to the same row.

    The first block that sees a key uses the row of the key itself. The next blocks use rows after those of all keys.

    Returns:
        The row of every key of the tiles, and the keys of the rows after the first ``num_keys``.
    """
    keys, num_blocks = layout.tiles.keys, len(blocks) - 1
    if num_blocks == 1:
        return keys, np.zeros(0, np.int64)
    if num_blocks not in layout.shares:
        rows, seen = np.arange(num_keys, dtype=np.int32), np.zeros(num_keys, np.bool_)
        targets, shared = np.empty(len(keys), np.int32), np.empty(0, np.int64)
        for first, end in pairwise(layout.tiles.starts[blocks]):
            sees = np.zeros(num_keys, np.bool_)
            sees[keys[first:end]] = True
            again = np.flatnonzero(sees & seen)
            rows[again] = num_keys + len(shared) + np.arange(len(again), dtype=np.int32)
            targets[first:end] = rows[keys[first:end]]
            shared = np.concatenate([shared, again])
            seen |= sees
        layout.shares[num_blocks] = targets, shared
    return layout.shares[num_blocks]


def _fold(sums: Tensor, shared: np.ndarray, like: Tensor) -> Tensor:
    """Add the rows of shared keys, which are at the end, to those of the keys, in place."""
    batch, num_keys, width = like.shape
    fold_kernel(batch * (sums.shape[1] // LANES), shared, num_keys, batch, sums.numpy())
    out = sums[: batch * num_keys].view(batch, num_keys, sums.shape[1])[..., :width].contiguous()
    # If threads share many keys, a view of the sums would keep much unused memory alive.
    return out.clone() if len(shared) > num_keys // 4 else out
