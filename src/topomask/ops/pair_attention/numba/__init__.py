"""Attention over the entries of a sparse mask, compiled.

In tiles of 16 queries for float32 if rows have many entries; otherwise row by row.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from topomask.ops import segments, tiles
from topomask.ops.backend import arrays, by_head, row_blocks
from topomask.ops.pair_attention import LANES, MIN_ENTRIES_PER_ROW, Attention, largest_exponent
from topomask.ops.pair_attention.numba import rows
from topomask.ops.quotient import smallest_total
from topomask.ops.sparse_product import Pattern, row_order
from topomask.ops.tiles.layout import Layout, make_layout
from topomask.ops.tiles.records import EntryGradients, Source, Tokens

_SAMPLED_TILES = 16

_layouts: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def _layout(attention: Attention) -> Layout | None:
    """Return the tiles of a pattern, cached as long as the pattern lives; None if going row by row is better."""
    pattern, q = attention.pattern, attention.q
    columns = pattern.columns
    if q.dtype != torch.float32 or attention.absolute or len(columns) < MIN_ENTRIES_PER_ROW * q.shape[1]:
        return None
    if columns not in _layouts:
        order = row_order(pattern.row_ptr, columns, pattern.shape[1])
        _layouts[columns] = make_layout(pattern.row_ptr, columns, pattern.shape[1], order=order)
    return _layouts[columns]


def estimate_tiles(query: Pattern, key: Pattern | None) -> tuple[int, int]:
    """Estimate how many keys tiles process in all lanes, and how many pairs alone, from a sample of tiles."""
    num_rows, num_keys = query.shape[0], query.shape[1] if key is None else key.shape[0]
    if not num_rows:
        return 0, 0
    order = row_order(query.row_ptr, query.columns, query.shape[1])
    order = torch.arange(num_rows, device="cpu") if order is None else order.long()
    num_tiles = -(-num_rows // LANES)
    chosen = torch.linspace(0, num_tiles - 1, min(_SAMPLED_TILES, num_tiles), device="cpu").round().long()
    sample = order[(chosen[:, None] * LANES + torch.arange(LANES, device="cpu")).flatten().clamp(max=num_rows - 1)]
    counts = query.row_ptr.diff()[sample]
    columns = query.columns[segments.ranges(query.row_ptr[sample], counts)]
    by_column = (None, None) if key is None else (key.column_ptr, key.rows)
    found = make_layout(segments.pointers(counts), columns, num_keys, *by_column).tiles
    scale = num_tiles / len(chosen)
    return round(scale * int((found.ends - found.starts[:-1]).sum())), round(scale * len(found.rest))


def _tiled(layout: Layout, attention: Attention) -> tuple[Layout, Source, tiles.Attention]:
    """Return the arguments of the tile kernels."""
    pattern, values, magnitudes, q, k, v, is_key, softmax, _, normalize = attention
    source = tiles.from_entries(pattern.row_ptr, layout.slots, values, magnitudes)
    return layout, source, tiles.Attention(q, k, v, is_key, softmax, normalize)


def _arguments(attention: Attention) -> tuple[rows.Entries, Tokens, rows.Options]:
    """Return the arguments of the row kernels."""
    pattern, values, magnitudes, q, k, v, is_key, softmax, absolute, normalize = attention
    separate = magnitudes is not None
    entries = rows.Entries(
        *arrays(pattern.row_ptr, pattern.columns),
        by_head(values),
        by_head(values if magnitudes is None else magnitudes),
    )
    bounds = largest_exponent(q.dtype), smallest_total(q.dtype)
    return entries, tiles.as_tokens(q, k, v, is_key), rows.Options(softmax, absolute, normalize, separate, *bounds)


def _max_entries(ptr: Tensor) -> int:
    """Return the largest number of entries of a row, or of a column."""
    return int(ptr.diff().max()) if len(ptr) > 1 else 0


def pair_attention(attention: Attention) -> tuple[Tensor, Tensor]:
    """Attention [G, R, D] and its denominator [G, R]."""
    layout = _layout(attention)
    if layout is not None:
        return tiles.forward(*_tiled(layout, attention))
    q, v, row_ptr = attention.q, attention.v, attention.pattern.row_ptr
    out, totals = q.new_empty(*q.shape[:2], v.shape[2]), q.new_empty(q.shape[:2])
    entries, tokens, options = _arguments(attention)
    is_linear = not attention.softmax and not attention.absolute
    starts = row_blocks(row_ptr)
    if is_linear and q.dtype == torch.float32 and entries.columns.dtype == np.int32:
        rows.forward_linear_kernel(len(starts) - 1, entries, tokens, options, starts, *arrays(out, totals))
    else:
        max_entries = _max_entries(row_ptr)
        rows.forward_kernel(len(starts) - 1, entries, tokens, options, max_entries, starts, *arrays(out, totals))
    return out, totals


def pair_attention_backward(
    attention: Attention, outputs: tuple[Tensor, ...], grad: Tensor, wanted: Collection[str]
) -> dict[str, Tensor]:
    """Return the gradients of values, magnitudes, q, k and v."""
    layout = _layout(attention)
    if layout is not None:
        return _differentiate_tiles(layout, attention, outputs, grad, wanted)
    pattern, values, magnitudes, q, k, v = attention[:6]
    entries, tokens, options = _arguments(attention)
    grad_values, grad_magnitudes = (
        torch.zeros_like(values),
        torch.zeros_like(values if magnitudes is None else magnitudes),
    )
    grad_q, grad_k, grad_v = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    shape = (len(q), len(pattern.columns))
    slopes = rows.Slopes(
        *arrays(q.new_empty(shape), q.new_empty(shape if attention.absolute else (0, 0)), q.new_empty(shape))
    )
    starts = row_blocks(pattern.row_ptr)
    rows.rows_kernel(
        len(starts) - 1,
        entries,
        tokens,
        options,
        _max_entries(pattern.row_ptr),
        starts,
        *arrays(grad, *outputs),
        by_head(grad_values),
        by_head(grad_magnitudes),
        *arrays(grad_q),
        slopes,
    )
    if {"k", "v"} & set(wanted):
        starts = row_blocks(pattern.column_ptr)
        rows.columns_kernel(
            len(starts) - 1,
            rows.Columns(*arrays(pattern.column_ptr, pattern.rows, pattern.order)),
            tokens,
            attention.absolute,
            _max_entries(pattern.column_ptr),
            starts,
            *arrays(grad),
            slopes,
            *arrays(grad_k, grad_v),
        )
    return {"values": grad_values, "magnitudes": grad_magnitudes, "q": grad_q, "k": grad_k, "v": grad_v}


def _differentiate_tiles(
    layout: Layout, attention: Attention, outputs: tuple[Tensor, ...], grad: Tensor, wanted: Collection[str]
) -> dict[str, Tensor]:
    wants_entries = not {"values", "magnitudes"}.isdisjoint(wanted)
    found = tiles.backward(*_tiled(layout, attention), outputs, grad, wants_entries)
    grads = {"q": found.q, "k": found.k, "v": found.v}
    if wants_entries:
        assert isinstance(found.source, EntryGradients)
        shape = attention.values.shape
        grads["values"] = torch.from_numpy(found.source.values).view(shape)
        if attention.magnitudes is not None:
            grads["magnitudes"] = torch.from_numpy(found.source.magnitudes).view(shape)
    return grads
