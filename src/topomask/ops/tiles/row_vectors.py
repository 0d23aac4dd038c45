"""Inner loops over single rows in LLVM's vector types: pairs that a tile processes alone, and rows turned into lanes.

All arguments are addresses or integers; matrices are float32.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from topomask.ops import llvm
from topomask.ops.llvm import (
    FLOAT,
    INT32,
    integer,
    load,
    load_integer,
    loop,
    multiply,
    multiply_add,
    store,
)
from topomask.ops.pair_attention import LANES


def _attend_four(builder: Any, alone: bool, args: Any) -> Any:
    """Add the contributions of ``count`` keys to a row of attention, four at a time; returns their denominator."""
    row, k, v, feature_dim, value_dim, keys, rest, count, weights, magnitudes, out = args
    last = builder.sub(count, integer(1))
    zero = ir.Constant(FLOAT, 0.0)

    def four(p, totals):
        places, valid = [], []
        for c in range(4):
            place = builder.add(p, integer(c))
            inside = builder.icmp_signed("<", place, count)
            valid.append(inside)
            place = builder.select(inside, place, last)
            places.append(load_integer(builder, rest, place) if alone else place)
        nodes = [load_integer(builder, keys, place) for place in places]
        left = [builder.add(k, builder.shl(builder.mul(node, feature_dim), integer(2))) for node in nodes]
        right = [builder.add(v, builder.shl(builder.mul(node, value_dim), integer(2))) for node in nodes]
        factors, total = [], totals[0]
        for place, inside, score in zip(places, valid, llvm.row_dots(builder, row, left, feature_dim), strict=True):
            slot = builder.shl(place, integer(4)) if alone else place
            weight, magnitude = (
                builder.load(llvm.pointer(builder, base, slot, FLOAT)) for base in (weights, magnitudes)
            )
            total = multiply_add(builder, total, score, builder.select(inside, magnitude, zero))
            factors.append(multiply(builder, score, builder.select(inside, weight, zero)))
        llvm.add_scaled_rows(builder, factors, right, out, value_dim)
        return [total]

    return loop(builder, integer(0), count, 4, [zero], four)[0]


@intrinsic
def attend_alone(context, row, k, v, feature_dim, value_dim, keys, rest, count, weights, magnitudes, out):
    """Add the contributions of keys[rest[p]] to a row of attention; returns their part of the denominator.

    The weight and magnitude of such a key are at index 16 * rest[p].
    """

    def generate(_, builder, signature, args):
        return _attend_four(builder, True, args)

    return types.float32(*[types.intp] * 11), generate


@intrinsic
def attend_row(context, row, k, v, feature_dim, value_dim, columns, count, weights, magnitudes, out):
    """Add the contributions of columns[p] to a row of attention; returns their part of the denominator.

    The weight and magnitude of such a column are at index p.
    """

    def generate(_, builder, signature, args):
        row, k, v, feature_dim, value_dim, columns, *rest = args
        return _attend_four(builder, False, (row, k, v, feature_dim, value_dim, columns, None, *rest))

    return types.float32(*[types.intp] * 10), generate


@intrinsic
def dot_row(context, left, right, width):
    """Return the dot product of two rows."""

    def generate(_, builder, signature, args):
        left, right, width = args
        return llvm.row_dots(builder, left, [right], width)[0]

    return types.float32(*[types.intp] * 3), generate


@intrinsic
def add_row(context, factor, source, target, width):
    """Add a row, times a factor, to another."""

    def generate(_, builder, signature, args):
        factor, source, target, width = args
        llvm.add_scaled_rows(builder, [factor], [source], target, width)

    return types.void(types.float32, *[types.intp] * 3), generate


def _transpose(builder: Any, vectors: list[Any]) -> list[Any]:
    """Transpose 16 vectors, by interleaving vectors r and r + 8 four times."""
    half = LANES // 2
    low = [k // 2 + (k % 2) * LANES for k in range(LANES)]
    masks = [ir.Constant(ir.VectorType(INT32, LANES), [k + shift for k in low]) for shift in (0, half)]
    for _ in range(4):
        vectors = [builder.shuffle_vector(vectors[r], vectors[r + half], mask) for r in range(half) for mask in masks]
    return vectors


@intrinsic
def rows_to_lanes(context, rows, width, lanes):
    """lanes[a, r] = rows[r, a] for 16 rows of ``width``, a multiple of 16."""

    def generate(_, builder, signature, args):
        rows, width, lanes = args

        def body(a, _):
            vectors = [load(builder, rows, builder.add(builder.mul(integer(r), width), a)) for r in range(LANES)]
            for k, vector in enumerate(_transpose(builder, vectors)):
                store(builder, vector, lanes, builder.shl(builder.add(a, integer(k)), integer(4)))
            return []

        loop(builder, integer(0), width, LANES, [], body)

    return llvm.procedure(3), generate


@intrinsic
def lanes_to_rows(context, lanes, width, rows):
    """rows[r, a] = lanes[a, r] for 16 rows of ``width``, a multiple of 16."""

    def generate(_, builder, signature, args):
        lanes, width, rows = args

        def body(a, _):
            vectors = [load(builder, lanes, builder.shl(builder.add(a, integer(k)), integer(4))) for k in range(LANES)]
            for r, vector in enumerate(_transpose(builder, vectors)):
                store(builder, vector, rows, builder.add(builder.mul(integer(r), width), a))
            return []

        loop(builder, integer(0), width, LANES, [], body)

    return llvm.procedure(3), generate
