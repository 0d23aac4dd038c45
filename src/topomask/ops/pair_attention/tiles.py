"""Pair attention in tiles of four queries by four keys, for float32 and widths that are multiples of 16.

Neighbouring queries see mostly the same keys. Four of them take the union of their keys together, four at a time: a key
is read once for four queries, and sixteen scores are summed up in sixteen vector registers. The inner loops are written
in LLVM's vector types, because Numba's vectoriser neither uses full-width registers nor sums them up as a tree.

Weights are packed as [blocks, 4 queries, 4 keys], zero where a query does not see a key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from topomask.ops.backend import Kernel, arrays, row_blocks

_LANES = 16
_TILE = 4
_TILES_PER_TASK = 16
# Share of packed weights that belong to pairs, below which going row by row is faster.
_MIN_DENSITY = 0.4

_FLOAT, _INT32, _INT64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, _LANES)
_FAST = ("fast",)


def _address(builder: Any, base: Any, offset: Any, kind: Any) -> Any:
    return builder.inttoptr(builder.add(base, builder.shl(offset, ir.Constant(_INT64, 2))), kind.as_pointer())


def _load(builder: Any, base: Any, offset: Any) -> Any:
    value = builder.load(_address(builder, base, offset, _VECTOR))
    value.align = 4
    return value


def _store(builder: Any, value: Any, base: Any, offset: Any) -> None:
    builder.store(value, _address(builder, base, offset, value.type)).align = 4


def _multiply_add(builder: Any, total: Any, a: Any, b: Any) -> Any:
    return builder.fadd(total, builder.fmul(a, b, flags=_FAST), flags=_FAST)


def _loop(builder: Any, count: Any, initial: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """A loop over 0, 16, 32, ... < count that carries vectors; returns them after the last turn."""
    before, head = builder.block, builder.append_basic_block("head")
    inside, after = builder.append_basic_block("body"), builder.append_basic_block("after")
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(_INT64)
    index.add_incoming(ir.Constant(_INT64, 0), before)
    carried = []
    for value in initial:
        carried.append(builder.phi(value.type))
        carried[-1].add_incoming(value, before)
    builder.cbranch(builder.icmp_signed("<", index, count), inside, after)
    builder.position_at_end(inside)
    for value, phi in zip(body(index, carried), carried, strict=True):
        phi.add_incoming(value, builder.block)
    index.add_incoming(builder.add(index, ir.Constant(_INT64, _LANES)), builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return carried


def _sums(builder: Any, vectors: list[Any]) -> Any:
    """A vector whose lanes are the sums of 16 vectors, as a tree of shuffles."""
    groups = 1
    while len(vectors) > 1:
        half = _LANES // groups // 2
        first = [s + g * 2 * half + k for s in (0, _LANES) for g in range(groups) for k in range(half)]
        masks = [ir.Constant(ir.VectorType(_INT32, _LANES), [k + shift for k in first]) for shift in (0, half)]
        vectors = [
            builder.fadd(*(builder.shuffle_vector(x, y, mask) for mask in masks), flags=_FAST)
            for x, y in zip(vectors[::2], vectors[1::2], strict=True)
        ]
        groups *= 2
    return vectors[0]


@intrinsic
def _dot_block(context, a, a0, a1, a2, a3, b, b0, b1, b2, b3, width, out):
    """out[r, c] = a_r . b_c for four rows of a and four of b, given by address and offsets."""

    def generate(_, builder, signature, args):
        a, *rest = args
        rows, (b, *columns), (width, out) = rest[:4], rest[4:9], rest[9:]
        zero = ir.Constant(_VECTOR, [0.0] * _LANES)

        def body(index, totals):
            left = [_load(builder, a, builder.add(row, index)) for row in rows]
            right = [_load(builder, b, builder.add(column, index)) for column in columns]
            return [_multiply_add(builder, totals[4 * r + c], left[r], right[c]) for r in range(4) for c in range(4)]

        totals = _loop(builder, width, [zero] * 16, body)
        _store(builder, _sums(builder, totals), out, ir.Constant(_INT64, 0))

    return types.void(*[types.intp] * 12), generate


@intrinsic
def _add_block(context, weights, out, o0, o1, o2, o3, rows, r0, r1, r2, r3, width):
    """out_r += sum_c weights[r, c] rows_c for four rows of out and four others, given by address and offsets."""

    def generate(_, builder, signature, args):
        weights, out, *rest = args
        targets, (source, *sources), width = rest[:4], rest[4:9], rest[9]
        undefined = ir.Constant(_VECTOR, ir.Undefined)
        first = ir.Constant(ir.VectorType(_INT32, _LANES), [0] * _LANES)
        spread = []
        for k in range(16):
            number = builder.load(_address(builder, weights, ir.Constant(_INT64, k), _FLOAT))
            single = builder.insert_element(undefined, number, ir.Constant(_INT32, 0))
            spread.append(builder.shuffle_vector(single, undefined, first))

        def body(index, _):
            inputs = [_load(builder, source, builder.add(row, index)) for row in sources]
            for r, target in enumerate(targets):
                place = builder.add(target, index)
                total = _load(builder, out, place)
                for c in range(4):
                    total = _multiply_add(builder, total, spread[4 * r + c], inputs[c])
                _store(builder, total, out, place)
            return []

        _loop(builder, width, [], body)

    return types.void(*[types.intp] * 12), generate


@njit
def _next_union(row_ptr, columns, first, places):
    """The least column that one of four rows has next, or -1."""
    least = np.int64(-1)
    for r in range(_TILE):
        if places[r] < row_ptr[first + r + 1]:
            column = np.int64(columns[places[r]])
            if least < 0 or column < least:
                least = column
    return least


def _count_blocks(row_ptr, columns, counts):
    """Blocks of four keys in every tile of four rows."""
    for tile in prange(counts.shape[0]):
        first = tile * _TILE
        places = row_ptr[first : first + _TILE].copy()
        count = 0
        while True:
            column = _next_union(row_ptr, columns, first, places)
            if column < 0:
                break
            for r in range(_TILE):
                if places[r] < row_ptr[first + r + 1] and columns[places[r]] == column:
                    places[r] += 1
            count += 1
        counts[tile] = (count + _TILE - 1) // _TILE


def _fill_blocks(row_ptr, columns, starts, keys, slots):
    """Keys of every block, and the slot among the packed weights of every entry."""
    for tile in prange(starts.shape[0] - 1):
        first = tile * _TILE
        places = row_ptr[first : first + _TILE].copy()
        place, end = starts[tile] * _TILE, starts[tile + 1] * _TILE
        while True:
            column = _next_union(row_ptr, columns, first, places)
            if column < 0:
                break
            keys[place] = column
            for r in range(_TILE):
                if places[r] < row_ptr[first + r + 1] and columns[places[r]] == column:
                    slots[places[r]] = (place // _TILE) * 16 + r * _TILE + place % _TILE
                    places[r] += 1
            place += 1
        # Weights of these are zero.
        for rest in range(place, end):
            keys[rest] = keys[starts[tile] * _TILE]


def _pack(slots, values, packed):
    for p in prange(slots.shape[0]):
        packed[slots[p]] = values[p]


def _unpack(slots, packed, values):
    for p in prange(slots.shape[0]):
        values[p] = packed[slots[p]]


def _forward(starts, keys, weights, sizes, q, k, v, numerator, denominator):
    """Numerator, zero before, and denominator of the rows in tiles; ``sizes`` is empty where it equals ``weights``."""
    batch, rows, width = q.shape
    num_keys, depth = v.shape[1], v.shape[2]
    num_tiles = starts.shape[0] - 1
    num_tasks = (num_tiles + _TILES_PER_TASK - 1) // _TILES_PER_TASK
    own = sizes.shape[0] > 0
    q_address, k_address, v_address = q.ctypes.data, k.ctypes.data, v.ctypes.data
    out_address = numerator.ctypes.data
    for task in prange(batch * num_tasks):
        b, group = task // num_tasks, task % num_tasks
        scores, totals = np.empty(16, np.float32), np.empty(16, np.float32)
        score_address = scores.ctypes.data
        for tile in range(group * _TILES_PER_TASK, min(num_tiles, (group + 1) * _TILES_PER_TASK)):
            first = b * rows + tile * _TILE
            qi, oi = first * width, first * depth
            totals[:] = 0
            for block in range(starts[tile], starts[tile + 1]):
                j0, j1 = b * num_keys + np.int64(keys[4 * block]), b * num_keys + np.int64(keys[4 * block + 1])
                j2, j3 = b * num_keys + np.int64(keys[4 * block + 2]), b * num_keys + np.int64(keys[4 * block + 3])
                _dot_block(
                    q_address,
                    qi,
                    qi + width,
                    qi + 2 * width,
                    qi + 3 * width,
                    k_address,
                    j0 * width,
                    j1 * width,
                    j2 * width,
                    j3 * width,
                    width,
                    score_address,
                )
                for x in range(16):
                    weighted = scores[x] * weights[16 * block + x]
                    totals[x] += scores[x] * sizes[16 * block + x] if own else weighted
                    scores[x] = weighted
                _add_block(
                    score_address,
                    out_address,
                    oi,
                    oi + depth,
                    oi + 2 * depth,
                    oi + 3 * depth,
                    v_address,
                    j0 * depth,
                    j1 * depth,
                    j2 * depth,
                    j3 * depth,
                    depth,
                )
            for r in range(_TILE):
                total = totals[4 * r] + totals[4 * r + 1] + totals[4 * r + 2] + totals[4 * r + 3]
                denominator[b, tile * _TILE + r] = total


def _backward(
    starts,
    keys,
    weights,
    sizes,
    q,
    k,
    v,
    grad_numerator,
    grad_denominator,
    blocks,
    grad_weights,
    grad_sizes,
    grad_q,
    parts_k,
    parts_v,
):
    """Gradients of the rows in tiles, added to what is there; blocks of tiles have gradients of keys of their own."""
    batch, rows, width = q.shape
    num_keys, depth = v.shape[1], v.shape[2]
    own = sizes.shape[0] > 0
    q_address, k_address, v_address = q.ctypes.data, k.ctypes.data, v.ctypes.data
    g_address, dq_address = grad_numerator.ctypes.data, grad_q.ctypes.data
    dk_address, dv_address = parts_k.ctypes.data, parts_v.ctypes.data
    for part in prange(blocks.shape[0] - 1):
        scores, through = np.empty(16, np.float32), np.empty(16, np.float32)
        turned_k, turned_v = np.empty(16, np.float32), np.empty(16, np.float32)
        score_address, through_address = scores.ctypes.data, through.ctypes.data
        turned_k_address, turned_v_address = turned_k.ctypes.data, turned_v.ctypes.data
        for b in range(batch):
            offset = part * batch * num_keys
            for tile in range(blocks[part], blocks[part + 1]):
                first = b * rows + tile * _TILE
                qi, gi = first * width, first * depth
                for block in range(starts[tile], starts[tile + 1]):
                    j0, j1 = b * num_keys + np.int64(keys[4 * block]), b * num_keys + np.int64(keys[4 * block + 1])
                    j2, j3 = b * num_keys + np.int64(keys[4 * block + 2]), b * num_keys + np.int64(keys[4 * block + 3])
                    _dot_block(
                        q_address,
                        qi,
                        qi + width,
                        qi + 2 * width,
                        qi + 3 * width,
                        k_address,
                        j0 * width,
                        j1 * width,
                        j2 * width,
                        j3 * width,
                        width,
                        score_address,
                    )
                    _dot_block(
                        g_address,
                        gi,
                        gi + depth,
                        gi + 2 * depth,
                        gi + 3 * depth,
                        v_address,
                        j0 * depth,
                        j1 * depth,
                        j2 * depth,
                        j3 * depth,
                        depth,
                        through_address,
                    )
                    for x in range(16):
                        slot, g = 16 * block + x, grad_denominator[b, tile * _TILE + x // 4]
                        weight = weights[slot]
                        grad_weights[slot] += scores[x] * through[x]
                        if own:
                            grad_sizes[slot] += scores[x] * g
                            through[x] = through[x] * weight + g * sizes[slot]
                        else:
                            grad_weights[slot] += scores[x] * g
                            through[x] = (through[x] + g) * weight
                        turned_k[4 * (x % 4) + x // 4] = through[x]
                        turned_v[4 * (x % 4) + x // 4] = scores[x] * weight
                    _add_block(
                        through_address,
                        dq_address,
                        qi,
                        qi + width,
                        qi + 2 * width,
                        qi + 3 * width,
                        k_address,
                        j0 * width,
                        j1 * width,
                        j2 * width,
                        j3 * width,
                        width,
                    )
                    _add_block(
                        turned_k_address,
                        dk_address,
                        (offset + j0) * width,
                        (offset + j1) * width,
                        (offset + j2) * width,
                        (offset + j3) * width,
                        q_address,
                        qi,
                        qi + width,
                        qi + 2 * width,
                        qi + 3 * width,
                        width,
                    )
                    _add_block(
                        turned_v_address,
                        dv_address,
                        (offset + j0) * depth,
                        (offset + j1) * depth,
                        (offset + j2) * depth,
                        (offset + j3) * depth,
                        g_address,
                        gi,
                        gi + depth,
                        gi + 2 * depth,
                        gi + 3 * depth,
                        depth,
                    )


_count_kernel, _fill_kernel = Kernel(_count_blocks), Kernel(_fill_blocks)
_pack_kernel, _unpack_kernel = Kernel(_pack), Kernel(_unpack)
_forward_kernel, _backward_kernel = Kernel(_forward, fastmath=True), Kernel(_backward, fastmath=True)


class Tiles(NamedTuple):
    """The layout of a pattern in tiles."""

    num_rows: int  # rows in full tiles
    starts: Tensor  # [tiles + 1], where the blocks of a tile begin
    keys: Tensor  # [4 * blocks], int32
    slots: Tensor  # [entries of those rows], int32 where it fits


_layouts: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
_packed: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def layout(row_ptr: Tensor, columns: Tensor) -> Tiles | None:
    """The layout of a pattern, kept as long as the pattern is; None where rows have too little in common."""
    if columns not in _layouts:
        _layouts[columns] = _make_layout(row_ptr, columns)
    return _layouts[columns]


def _make_layout(row_ptr: Tensor, columns: Tensor) -> Tiles | None:
    num_tiles = (len(row_ptr) - 1) // _TILE
    if num_tiles == 0:
        return None
    counts = np.zeros(num_tiles, np.int64)
    pattern = arrays(row_ptr, columns)
    _count_kernel(*pattern, counts)
    starts = np.concatenate([[0], np.cumsum(counts)])
    entries = int(row_ptr[num_tiles * _TILE])
    if entries < _MIN_DENSITY * 16 * starts[-1] or not entries:
        return None
    slot_type = np.int32 if 16 * starts[-1] < 2**31 else np.int64
    keys, slots = np.zeros(4 * starts[-1], np.int32), np.empty(entries, slot_type)
    _fill_kernel(*pattern, starts, keys, slots)
    return Tiles(num_tiles * _TILE, *(torch.from_numpy(x) for x in (starts, keys, slots)))


def fits(q: Tensor, v: Tensor) -> bool:
    """Whether the kernels take tensors of this type and width."""
    widths = (q.shape[-1], v.shape[-1])
    return q.dtype == torch.float32 and all(width > 0 and width % _LANES == 0 for width in widths)


def pack(tiles: Tiles, values: Tensor) -> Tensor:
    """Weights in the order of blocks, kept while the values live unchanged; an empty tensor stays empty."""
    if not len(values):
        return values
    version = None if values.is_inference() else values._version
    kept = _packed.get(values)
    if kept is None or kept[0] != version or kept[1] is not tiles.slots:
        packed = values.new_zeros(16 * len(tiles.keys) // _TILE)
        _pack_kernel(*arrays(tiles.slots, values, packed))
        kept = _packed[values] = version, tiles.slots, packed
    return kept[2]


def forward(
    tiles: Tiles,
    values: Tensor,
    magnitudes: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    numerator: Tensor,
    denominator: Tensor,
) -> None:
    """Fill numerator (zero before) and denominator for the rows in tiles."""
    weights, sizes = pack(tiles, values), pack(tiles, magnitudes)
    _forward_kernel(*arrays(tiles.starts, tiles.keys, weights, sizes, q, k, v), *arrays(numerator, denominator))


def backward(
    tiles: Tiles,
    values: Tensor,
    magnitudes: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad_numerator: Tensor,
    grad_denominator: Tensor,
    grad_values: Tensor,
    grad_magnitudes: Tensor,
    grad_q: Tensor,
    parts_k: Tensor,
    parts_v: Tensor,
) -> None:
    """Add gradients of the rows in tiles; ``parts_k`` and ``parts_v`` have one summand per block."""
    weights, sizes = pack(tiles, values), pack(tiles, magnitudes)
    grad_weights, grad_sizes = torch.zeros_like(weights), torch.zeros_like(sizes)
    _backward_kernel(
        *arrays(tiles.starts, tiles.keys, weights, sizes, q, k, v, grad_numerator, grad_denominator),
        row_blocks(tiles.starts, most=len(parts_k)),
        *arrays(grad_weights, grad_sizes, grad_q, parts_k, parts_v),
    )
    entries = len(tiles.slots)
    _unpack_kernel(*arrays(tiles.slots, grad_weights, grad_values[:entries]))
    if len(magnitudes):
        _unpack_kernel(*arrays(tiles.slots, grad_sizes, grad_magnitudes[:entries]))
