"""Building blocks of LLVM code for the inner loops of kernels.

Functions emit code at the current position of a builder. Matrices are float32 and given by address; a vector holds one
number of each of 16 rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from topomask.ops.backend import FAST_MATH
from topomask.ops.pair_attention import LANES

KEYS = 8

FLOAT, INT8, INT32, INT64 = ir.FloatType(), ir.IntType(8), ir.IntType(32), ir.IntType(64)
VECTOR = ir.VectorType(FLOAT, LANES)
ZERO = ir.Constant(VECTOR, [0.0] * LANES)
FAST = tuple(sorted(FAST_MATH))
_CACHE_LINE = 64
# Cache lines of a row that are prefetched; the rest of longer rows is left to the hardware.
_LINES_AHEAD = 4


def integer(value: int) -> Any:
    """Return a constant of 64 bits."""
    return ir.Constant(INT64, value)


def pointer(builder: Any, base: Any, offset: Any, kind: Any) -> Any:
    """Return the address of the 32-bit number at index ``offset`` from ``base``."""
    return builder.inttoptr(builder.add(base, builder.shl(offset, integer(2))), kind.as_pointer())


def load(builder: Any, base: Any, offset: Any, kind: Any = VECTOR) -> Any:
    """Load the vector that begins at index ``offset`` from ``base``."""
    value = builder.load(pointer(builder, base, offset, kind))
    value.align = 4
    return value


def store(builder: Any, value: Any, base: Any, offset: Any) -> None:
    """Store a vector that begins at index ``offset`` from ``base``."""
    builder.store(value, pointer(builder, base, offset, value.type)).align = 4


def add_to(builder: Any, value: Any, base: Any, offset: Any) -> None:
    """Add a vector to the one that begins at index ``offset`` from ``base``."""
    store(builder, add(builder, load(builder, base, offset), value), base, offset)


def load_integer(builder: Any, base: Any, offset: Any) -> Any:
    """Load the 32-bit integer at index ``offset`` from ``base``, extended to 64 bits."""
    return builder.sext(builder.load(pointer(builder, base, offset, INT32)), INT64)


def broadcast(builder: Any, base: Any, offset: Any) -> Any:
    """Load the number at index ``offset`` from ``base`` into every lane."""
    return repeat(builder, builder.load(pointer(builder, base, offset, FLOAT)), LANES)


def multiply(builder: Any, a: Any, b: Any) -> Any:
    """Multiply two vectors or numbers."""
    return builder.fmul(a, b, flags=FAST)


def add(builder: Any, a: Any, b: Any) -> Any:
    """Add two vectors or numbers."""
    return builder.fadd(a, b, flags=FAST)


def multiply_add(builder: Any, total: Any, a: Any, b: Any) -> Any:
    """Return ``total`` plus a times b."""
    return add(builder, total, multiply(builder, a, b))


def lane_sum(builder: Any, vector: Any) -> Any:
    """Return the sum of all lanes, as a number."""
    half = vector.type.count
    while half > 1:
        half //= 2
        turned = [lane ^ half for lane in range(vector.type.count)]
        mask = ir.Constant(ir.VectorType(INT32, len(turned)), turned)
        vector = add(builder, vector, builder.shuffle_vector(vector, vector, mask))
    return builder.extract_element(vector, ir.Constant(INT32, 0))


def repeat(builder: Any, number: Any, count: int) -> Any:
    """Return a vector with the same number in every lane."""
    undefined = ir.Constant(ir.VectorType(FLOAT, count), ir.Undefined)
    single = builder.insert_element(undefined, number, ir.Constant(INT32, 0))
    return builder.shuffle_vector(single, undefined, ir.Constant(ir.VectorType(INT32, count), [0] * count))


def loop(
    builder: Any, first: Any, end: Any, step: int, initial: list[Any], body: Callable[[Any, list[Any]], list[Any]]
) -> list[Any]:
    """Loop over first, first + step, ... < end, and carry vectors; returns them after the last iteration."""
    before, head = builder.block, builder.append_basic_block("head")
    inside, after = builder.append_basic_block("body"), builder.append_basic_block("after")
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(INT64)
    index.add_incoming(first, before)
    carried = []
    for value in initial:
        carried.append(builder.phi(value.type))
        carried[-1].add_incoming(value, before)
    builder.cbranch(builder.icmp_signed("<", index, end), inside, after)
    builder.position_at_end(inside)
    for value, phi in zip(body(index, carried), carried, strict=True):
        phi.add_incoming(value, builder.block)
    index.add_incoming(builder.add(index, integer(step)), builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return carried


def key_rows(builder: Any, base: Any, keys: Any, stride: Any) -> list[Any]:
    """Return the addresses of the rows of a block of keys."""
    return [
        builder.add(base, builder.shl(builder.mul(load_integer(builder, keys, integer(c)), stride), integer(2)))
        for c in range(KEYS)
    ]


def fetch_ahead(builder: Any, base: Any, keys: Any, stride: Any) -> None:
    """Prefetch the rows of a block of keys."""
    for row in key_rows(builder, base, keys, stride):
        fetch(builder, row)


def fetch(builder: Any, row: Any) -> None:
    """Prefetch a row."""
    kind = ir.FunctionType(ir.VoidType(), [INT8.as_pointer(), INT32, INT32, INT32])
    name = "llvm.prefetch.p0i8"
    prefetch = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    for line in range(_LINES_AHEAD):
        address = builder.inttoptr(builder.add(row, integer(_CACHE_LINE * line)), INT8.as_pointer())
        builder.call(prefetch, [address, *(ir.Constant(INT32, flag) for flag in (0, 3, 1))])


def lane_dots(builder: Any, lanes: Any, rows: list[Any], width: Any) -> list[Any]:
    """Multiply some rows, at any addresses, with all lanes: returns sum_a rows[c][a] lanes[a, :] for every c."""

    def body(a, totals):
        lane = load(builder, lanes, builder.shl(a, integer(4)))
        return [
            multiply_add(builder, total, broadcast(builder, row, a), lane)
            for total, row in zip(totals, rows, strict=True)
        ]

    return loop(builder, integer(0), width, 1, [ZERO] * len(rows), body)


def add_to_lanes(builder: Any, factors: list[Any], rows: list[Any], width: Any, lanes: Any) -> None:
    """lanes[a, :] += sum_c factors[c] rows[c][a], with a vector of factors per row."""

    def body(a, _):
        place = builder.shl(a, integer(4))
        total = load(builder, lanes, place)
        for factor, row in zip(factors, rows, strict=True):
            total = multiply_add(builder, total, factor, broadcast(builder, row, a))
        store(builder, total, lanes, place)
        return []

    loop(builder, integer(0), width, 1, [], body)


def row_dots(builder: Any, row: Any, others: list[Any], width: Any) -> list[Any]:
    """Return the dot products of a row with some others, at any addresses: 16 numbers at a time, then 8, then one."""
    totals, start = [ir.Constant(FLOAT, 0.0)] * len(others), integer(0)
    for count in (LANES, LANES // 2):
        kind = ir.VectorType(FLOAT, count)
        end = builder.and_(width, integer(-count))

        def body(a, sums, kind=kind):
            source = load(builder, row, a, kind)
            return [
                multiply_add(builder, total, source, load(builder, other, a, kind))
                for total, other in zip(sums, others, strict=True)
            ]

        sums = loop(builder, start, end, count, [ir.Constant(kind, [0.0] * count)] * len(others), body)
        totals = [add(builder, total, lane_sum(builder, x)) for total, x in zip(totals, sums, strict=True)]
        start = end

    def last(a, sums):
        source = builder.load(pointer(builder, row, a, FLOAT))
        return [
            multiply_add(builder, total, source, builder.load(pointer(builder, other, a, FLOAT)))
            for total, other in zip(sums, others, strict=True)
        ]

    return loop(builder, start, width, 1, totals, last)


def add_scaled_rows(builder: Any, factors: list[Any], rows: list[Any], target: Any, width: Any) -> None:
    """Add rows, each times its factor, to a target."""
    start = integer(0)
    for count in (LANES, LANES // 2):
        kind = ir.VectorType(FLOAT, count)
        repeated = [repeat(builder, factor, count) for factor in factors]

        def body(a, _, kind=kind, repeated=repeated):
            total = load(builder, target, a, kind)
            for factor, row in zip(repeated, rows, strict=True):
                total = multiply_add(builder, total, factor, load(builder, row, a, kind))
            store(builder, total, target, a)
            return []

        end = builder.and_(width, integer(-count))
        loop(builder, start, end, count, [], body)
        start = end

    def last(a, _):
        place = pointer(builder, target, a, FLOAT)
        total = builder.load(place)
        for factor, row in zip(factors, rows, strict=True):
            total = multiply_add(builder, total, factor, builder.load(pointer(builder, row, a, FLOAT)))
        builder.store(total, place)
        return []

    loop(builder, start, width, 1, [], last)


def procedure(num_arguments: int) -> Any:
    """Return the type of a function of addresses and integers that returns nothing."""
    return types.void(*[types.intp] * num_arguments)
