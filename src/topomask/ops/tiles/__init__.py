"""Attention in tiles of 16 queries, for float32 on the CPU.

Queries with many keys in common share a tile (``layout.py``). A tile visits the union of their keys: keys that at least
two of its queries see are taken eight at a time against all 16 lanes (``vectors.py``), the others pair by pair. The
weights of a tile (``weights.py``) are packed before, or entries of a pattern, or products of walk features, which are
then formed tile by tile and never stored.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from topomask.ops.backend import MAX_PARTS, arrays, row_blocks
from topomask.ops.tiles.kernels import backward_kernel, fold_kernel, forward_kernel, share_kernel
from topomask.ops.tiles.layout import Layout
from topomask.ops.tiles.vectors import LANES
from topomask.ops.tiles.weights import ENTRIES, FEATURES, PACKED, pack_kernel


class Source(NamedTuple):
    """Where the weights of a layout come from; tensors that a kind does not need are empty."""

    kind: int  # PACKED, ENTRIES or FEATURES
    own: bool  # whether sizes differ from weights
    packed: tuple[Tensor, Tensor]  # weights and sizes [starts[-1] * 16]
    entries: tuple[Tensor, Tensor, Tensor, Tensor]  # row_ptr, slots, values, sizes
    # Of queries: row_ptr, columns, values, sizes; of keys, by column: column_ptr, rows, values, sizes.
    features: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


# Tiles that go through the whole batch together, and their keys.
_MOST_TOGETHER, _KEYS_TOGETHER = 8, 4096

_FLOATS, _INTS, _LONGS = (torch.zeros(0, dtype=t, device="cpu") for t in (torch.float32, torch.int32, torch.int64))
_NO_PACKED = (_FLOATS, _FLOATS)
_NO_ENTRIES = (_LONGS, _INTS, _FLOATS, _FLOATS)
_NO_FEATURES = (_LONGS, _INTS, _FLOATS, _FLOATS, _LONGS, _INTS, _FLOATS, _FLOATS)


def from_packed(weights: Tensor, sizes: Tensor) -> Source:
    """Weights as :func:`pack_features` gave them."""
    return Source(PACKED, len(sizes) > 0, (weights, sizes), _NO_ENTRIES, _NO_FEATURES)


def from_entries(row_ptr: Tensor, slots: Tensor, values: Tensor, sizes: Tensor) -> Source:
    """Values of the entries of a pattern; ``sizes`` is empty where they are the values."""
    return Source(ENTRIES, len(sizes) > 0, _NO_PACKED, (row_ptr, slots, values, sizes), _NO_FEATURES)


def from_features(*features: Tensor) -> Source:
    """Products of walk features of queries and keys."""
    assert len(features) == 8
    return Source(FEATURES, len(features[3]) > 0, _NO_PACKED, _NO_ENTRIES, features)


def _maps(layout: Layout, source: Source, num_keys: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Room for numbering the columns and keys that a tile sees, for every block."""
    if source.kind != FEATURES:
        return tuple(np.zeros((count, 0), np.int32) for _ in range(3))  # type: ignore[return-value]
    num_inner = len(source.features[4]) - 1
    return (
        np.full((count, num_inner), -1, np.int32),
        np.empty((count, layout.most_inner), np.int32),
        np.empty((count, num_keys), np.int32),
    )


def _nested(parts: tuple[Tensor, ...]) -> tuple[np.ndarray, ...]:
    return tuple(arrays(*parts))


def _tables(layout: Layout) -> tuple[np.ndarray | int, ...]:
    return (*arrays(*layout[:6]), layout.num_rows)


def pack_features(layout: Layout, source: Source, num_keys: int) -> tuple[Tensor, Tensor]:
    """Weights and sizes of all tiles, [starts[-1] * 16]; sizes are empty where they are the weights."""
    count = int(layout.starts[-1]) * LANES
    weights, sizes = _FLOATS.new_zeros(count), _FLOATS.new_zeros(count if source.own else 0)
    blocks = row_blocks(layout.starts)
    scratch = np.empty((len(blocks) - 1, layout.most_inner * LANES), np.float32)
    maps = _maps(layout, source, num_keys, len(blocks) - 1)
    pack_kernel(_tables(layout), _nested(source.features), source.own, blocks, scratch, maps, *arrays(weights, sizes))
    return weights, sizes


def _room(
    layout: Layout, count: int, per_chunk: int, per_tile: int, num_inner: int, *widths: int
) -> tuple[np.ndarray, np.ndarray]:
    """Floats and integers for every block to work with."""
    most = layout.most_keys * LANES
    padded = sum(_padded(width) for width in widths)
    size = (per_chunk * _together(layout) + per_tile) * most + 32 * padded + 64 + num_inner * layout.most_inner * LANES
    return torch.empty(count, size, dtype=torch.float32, device="cpu").numpy(), np.empty((count, most), np.int32)


def _together(layout: Layout) -> int:
    """Tiles that go through the whole batch together, so that their keys and gradients of keys stay in the cache."""
    return max(1, min(_MOST_TOGETHER, _KEYS_TOGETHER // max(1, layout.most_keys)))


def _padded(width: int) -> int:
    return -(-width // LANES) * LANES


def forward(
    layout: Layout, source: Source, q: Tensor, k: Tensor, v: Tensor, is_key: Tensor, softmax: bool, normalize: bool
) -> tuple[Tensor, Tensor]:
    """Attention [B, R, D] and its denominator [B, R]."""
    out, denominator = q.new_empty(*q.shape[:2], v.shape[2]), q.new_empty(q.shape[:2])
    blocks = row_blocks(layout.starts)
    scratch, bits = _room(layout, len(blocks) - 1, 2, 1, 1, q.shape[2], v.shape[2])
    forward_kernel(
        source.kind,
        softmax,
        normalize,
        source.own,
        _tables(layout),
        *(_nested(parts) for parts in source[2:]),
        *arrays(q, k, v, is_key),
        blocks,
        _together(layout),
        scratch,
        bits,
        _maps(layout, source, k.shape[1], len(blocks) - 1),
        *arrays(out, denominator),
    )
    return out, denominator


def backward(
    layout: Layout,
    source: Source,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_key: Tensor,
    softmax: bool,
    normalize: bool,
    grad: Tensor,
    out: Tensor,
    denominator: Tensor,
) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    """Gradients of what the weights were made of, and of q, k and v.

    The first are those of (values, sizes) for entries, of (query values, query sizes, key values, key sizes) for
    features, and none for packed weights.
    """
    blocks = row_blocks(layout.starts, MAX_PARTS)
    count = len(blocks) - 1
    scratch, bits = _room(layout, count, 4, 2, 2, q.shape[2], q.shape[2], v.shape[2])
    grad_q = torch.empty_like(q, memory_format=torch.contiguous_format)
    targets, shared = _share_keys(layout, blocks, k.shape[1])
    sums_k, sums_v = (k.new_zeros(len(x) * (x.shape[1] + len(shared)), _padded(x.shape[2])) for x in (k, v))
    grad_entries = [torch.empty_like(x) for x in source.entries[2:]]
    grad_query = [torch.empty_like(x) for x in source.features[2:4]]
    parts_key = [_zeros(count, len(x)) for x in source.features[6:]]
    backward_kernel(
        source.kind,
        softmax,
        normalize,
        source.own,
        _tables(layout),
        *(_nested(parts) for parts in source[2:]),
        *arrays(q, k, v, is_key, grad, out, denominator),
        blocks,
        _together(layout),
        targets,
        scratch,
        bits,
        _maps(layout, source, k.shape[1], count),
        tuple(arrays(*grad_entries)),
        tuple(arrays(*grad_query, *parts_key)),
        *arrays(grad_q, sums_k, sums_v),
    )
    grad_k, grad_v = (_fold(sums, shared, x) for sums, x in ((sums_k, k), (sums_v, v)))
    grads = [*grad_query, *(_sum_parts(part) for part in parts_key)] if source.kind == FEATURES else grad_entries
    return ([] if source.kind == PACKED else grads), grad_q, grad_k, grad_v


def _share_keys(layout: Layout, blocks: np.ndarray, num_keys: int) -> tuple[np.ndarray, Tensor]:
    """The row of gradients of every key of the tiles, and the keys of the rows after the first ``num_keys``."""
    starts, keys = arrays(layout.starts, layout.keys)
    count = len(blocks) - 1
    if count == 1:
        return keys, torch.zeros(0, dtype=torch.int64)
    if count not in layout.shares:
        targets, shared = np.empty(len(keys), np.int32), np.empty(num_keys * (count - 1), np.int64)
        found = share_kernel(blocks, starts, keys, num_keys, targets, shared)
        layout.shares[count] = targets, torch.from_numpy(shared[:found].copy())
    return layout.shares[count]


def _fold(sums: Tensor, shared: Tensor, like: Tensor) -> Tensor:
    """Add the rows of shared keys, which are at the end, to those of the keys, in place."""
    batch, num_keys, width = like.shape
    fold_kernel(shared.numpy(), num_keys, batch, sums.numpy())
    out = sums[: batch * num_keys].view(batch, num_keys, sums.shape[1])[..., :width].contiguous()
    # Where threads share most keys, what they shared is larger than the answer, and must not live as long.
    return out.clone() if len(shared) > num_keys // 4 else out


def _zeros(*shape: int) -> Tensor:
    """Zeros that are not written before they are used: a block touches its own neighbourhood only."""
    return torch.from_numpy(np.zeros(shape, np.float32))


def _sum_parts(parts: Tensor) -> Tensor:
    """The sum over blocks, in the memory of the first."""
    total = parts[0]
    for part in parts[1:]:
        total += part
    return total
