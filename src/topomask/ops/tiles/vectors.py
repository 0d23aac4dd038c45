"""Inner loops of the tile kernels, in LLVM's vector types: Numba's vectoriser uses neither full-width registers nor
broadcasts from memory.

A tile holds 16 rows (queries) in the lanes of vectors: ``lanes[a, :]`` is feature a of all 16. Another matrix is read
row by row, eight rows (keys) at a time, wherever they lie: a number of such a row is broadcast and meets all 16 lanes
at once. All arguments are addresses or integers; matrices are float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from topomask.ops.backend import FAST_MATH

LANES = 16
KEYS = 8

_FLOAT, _INT8, _INT32, _INT64 = ir.FloatType(), ir.IntType(8), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, LANES)
_ZERO = ir.Constant(_VECTOR, [0.0] * LANES)
_FAST = tuple(sorted(FAST_MATH))
_CACHE_LINE = 64
# Cache lines of a row that are fetched ahead; longer rows are left to the hardware.
_LINES_AHEAD = 4


def _integer(value: int) -> Any:
    return ir.Constant(_INT64, value)


def _pointer(builder: Any, base: Any, offset: Any, kind: Any) -> Any:
    """The address of 32-bit number ``offset`` after ``base``."""
    return builder.inttoptr(builder.add(base, builder.shl(offset, _integer(2))), kind.as_pointer())


def _load(builder: Any, base: Any, offset: Any, kind: Any = _VECTOR) -> Any:
    value = builder.load(_pointer(builder, base, offset, kind))
    value.align = 4
    return value


def _store(builder: Any, value: Any, base: Any, offset: Any) -> None:
    builder.store(value, _pointer(builder, base, offset, value.type)).align = 4


def _load_integer(builder: Any, base: Any, offset: Any) -> Any:
    return builder.sext(builder.load(_pointer(builder, base, offset, _INT32)), _INT64)


def _broadcast(builder: Any, base: Any, offset: Any) -> Any:
    return _spread(builder, builder.load(_pointer(builder, base, offset, _FLOAT)), LANES)


def _multiply(builder: Any, a: Any, b: Any) -> Any:
    return builder.fmul(a, b, flags=_FAST)


def _add(builder: Any, a: Any, b: Any) -> Any:
    return builder.fadd(a, b, flags=_FAST)


def _multiply_add(builder: Any, total: Any, a: Any, b: Any) -> Any:
    return _add(builder, total, _multiply(builder, a, b))


def _total(builder: Any, vector: Any) -> Any:
    """The sum of all lanes, as a number."""
    half = vector.type.count
    while half > 1:
        half //= 2
        turned = [lane ^ half for lane in range(vector.type.count)]
        mask = ir.Constant(ir.VectorType(_INT32, len(turned)), turned)
        vector = _add(builder, vector, builder.shuffle_vector(vector, vector, mask))
    return builder.extract_element(vector, ir.Constant(_INT32, 0))


def _spread(builder: Any, number: Any, count: int) -> Any:
    """A vector with the same number in every lane."""
    undefined = ir.Constant(ir.VectorType(_FLOAT, count), ir.Undefined)
    single = builder.insert_element(undefined, number, ir.Constant(_INT32, 0))
    return builder.shuffle_vector(single, undefined, ir.Constant(ir.VectorType(_INT32, count), [0] * count))


def _loop(
    builder: Any, first: Any, end: Any, step: int, initial: list[Any], body: Callable[[Any, list[Any]], list[Any]]
) -> list[Any]:
    """A loop over first, first + step, ... < end that carries vectors; returns them after the last turn."""
    before, head = builder.block, builder.append_basic_block("head")
    inside, after = builder.append_basic_block("body"), builder.append_basic_block("after")
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(_INT64)
    index.add_incoming(first, before)
    carried = []
    for value in initial:
        carried.append(builder.phi(value.type))
        carried[-1].add_incoming(value, before)
    builder.cbranch(builder.icmp_signed("<", index, end), inside, after)
    builder.position_at_end(inside)
    for value, phi in zip(body(index, carried), carried, strict=True):
        phi.add_incoming(value, builder.block)
    index.add_incoming(builder.add(index, _integer(step)), builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return carried


def _rows(builder: Any, base: Any, keys: Any, stride: Any) -> list[Any]:
    """Addresses of the rows of a block of keys."""
    return [
        builder.add(base, builder.shl(builder.mul(_load_integer(builder, keys, _integer(c)), stride), _integer(2)))
        for c in range(KEYS)
    ]


def _fetch_ahead(builder: Any, base: Any, keys: Any, stride: Any) -> None:
    """Ask for the rows of a block of keys to be brought into the cache."""
    for row in _rows(builder, base, keys, stride):
        _fetch(builder, row)


def _fetch(builder: Any, row: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [_INT8.as_pointer(), _INT32, _INT32, _INT32])
    name = "llvm.prefetch.p0i8"
    prefetch = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    for line in range(_LINES_AHEAD):
        address = builder.inttoptr(builder.add(row, _integer(_CACHE_LINE * line)), _INT8.as_pointer())
        builder.call(prefetch, [address, *(ir.Constant(_INT32, flag) for flag in (0, 3, 1))])


def _dots(builder: Any, lanes: Any, rows: Any, keys: Any, width: Any) -> list[Any]:
    """Products of a block of keys with all lanes."""
    sources = _rows(builder, rows, keys, width)

    def body(a, totals):
        query = _load(builder, lanes, builder.shl(a, _integer(4)))
        return [
            _multiply_add(builder, total, _broadcast(builder, row, a), query)
            for total, row in zip(totals, sources, strict=True)
        ]

    return _loop(builder, _integer(0), width, 1, [_ZERO] * KEYS, body)


def _row_dots(builder: Any, row: Any, others: list[Any], width: Any) -> list[Any]:
    """Products of a row with some others, wherever they lie: 16 numbers at a time, then 8, then one."""
    totals, start = [ir.Constant(_FLOAT, 0.0)] * len(others), _integer(0)
    for count in (LANES, LANES // 2):
        kind = ir.VectorType(_FLOAT, count)
        end = builder.and_(width, _integer(-count))

        def body(a, sums, kind=kind):
            source = _load(builder, row, a, kind)
            return [
                _multiply_add(builder, total, source, _load(builder, other, a, kind))
                for total, other in zip(sums, others, strict=True)
            ]

        sums = _loop(builder, start, end, count, [ir.Constant(kind, [0.0] * count)] * len(others), body)
        totals = [_add(builder, total, _total(builder, x)) for total, x in zip(totals, sums, strict=True)]
        start = end

    def last(a, sums):
        source = builder.load(_pointer(builder, row, a, _FLOAT))
        return [
            _multiply_add(builder, total, source, builder.load(_pointer(builder, other, a, _FLOAT)))
            for total, other in zip(sums, others, strict=True)
        ]

    return _loop(builder, start, width, 1, totals, last)


def _add_rows(builder: Any, factors: list[Any], rows: list[Any], target: Any, width: Any) -> None:
    """Add rows times factors to a target."""
    start = _integer(0)
    for count in (LANES, LANES // 2):
        kind = ir.VectorType(_FLOAT, count)
        spread = [_spread(builder, factor, count) for factor in factors]

        def body(a, _, kind=kind, spread=spread):
            total = _load(builder, target, a, kind)
            for factor, row in zip(spread, rows, strict=True):
                total = _multiply_add(builder, total, factor, _load(builder, row, a, kind))
            _store(builder, total, target, a)
            return []

        end = builder.and_(width, _integer(-count))
        _loop(builder, start, end, count, [], body)
        start = end

    def last(a, _):
        place = _pointer(builder, target, a, _FLOAT)
        total = builder.load(place)
        for factor, row in zip(factors, rows, strict=True):
            total = _multiply_add(builder, total, factor, builder.load(_pointer(builder, row, a, _FLOAT)))
        builder.store(total, place)
        return []

    _loop(builder, start, width, 1, [], last)


def _procedure(num_arguments: int) -> Any:
    return types.void(*[types.intp] * num_arguments)


@intrinsic
def dot_keys(context, lanes, rows, keys, width, out, next_rows, next_keys, next_width):
    """out[c, :] = sum_a rows[keys[c], a] lanes[a, :] for eight keys; fetches ``next_rows`` of eight others."""

    def generate(_, builder, signature, args):
        lanes, rows, keys, width, out, next_rows, next_keys, next_width = args
        _fetch_ahead(builder, next_rows, next_keys, next_width)
        for c, total in enumerate(_dots(builder, lanes, rows, keys, width)):
            _store(builder, total, out, _integer(LANES * c))

    return _procedure(8), generate


@intrinsic
def weigh_keys(context, lanes, rows, keys, width, weights, sizes, out, totals, next_rows, next_width):
    """As `dot_keys`, with out[c, :] times weights[c, :]; and totals[:] += sum_c of the products times sizes[c, :]."""

    def generate(_, builder, signature, args):
        lanes, rows, keys, width, weights, sizes, out, totals, next_rows, next_width = args
        _fetch_ahead(builder, next_rows, keys, next_width)
        total = _load(builder, totals, _integer(0))
        for c, score in enumerate(_dots(builder, lanes, rows, keys, width)):
            place = _integer(LANES * c)
            total = _multiply_add(builder, total, score, _load(builder, sizes, place))
            _store(builder, _multiply(builder, score, _load(builder, weights, place)), out, place)
        _store(builder, total, totals, _integer(0))

    return _procedure(10), generate


@intrinsic
def add_keys(context, scores, rows, keys, width, lanes, next_rows, next_width):
    """lanes[a, :] += sum_c scores[c, :] rows[keys[c], a] for eight keys; fetches ``next_rows`` of the eight after."""

    def generate(_, builder, signature, args):
        scores, rows, keys, width, lanes, next_rows, next_width = args
        sources = _rows(builder, rows, keys, width)
        _fetch_ahead(builder, next_rows, builder.add(keys, _integer(4 * KEYS)), next_width)
        weights = [_load(builder, scores, _integer(LANES * c)) for c in range(KEYS)]

        def body(a, _):
            place = builder.shl(a, _integer(4))
            total = _load(builder, lanes, place)
            for weight, row in zip(weights, sources, strict=True):
                total = _multiply_add(builder, total, weight, _broadcast(builder, row, a))
            _store(builder, total, lanes, place)
            return []

        _loop(builder, _integer(0), width, 1, [], body)

    return _procedure(7), generate


@intrinsic
def add_rows(context, scores, block, width, out, keys, next_rows, next_keys, next_width):
    """out[keys[c], :] += sum_r scores[c, r] block[r, :] for eight keys, where a row has ``width``, a multiple of 16;
    fetches ``next_rows`` of eight others.
    """

    def generate(_, builder, signature, args):
        scores, block, width, out, keys, next_rows, next_keys, next_width = args
        _fetch_ahead(builder, next_rows, next_keys, next_width)
        targets = _rows(builder, out, keys, width)

        def body(a, _):
            def over_rows(r, totals):
                source = _load(builder, block, builder.add(builder.mul(r, width), a))
                return [
                    _multiply_add(
                        builder, total, _broadcast(builder, scores, builder.add(r, _integer(LANES * c))), source
                    )
                    for c, total in enumerate(totals)
                ]

            totals = _loop(builder, _integer(0), _integer(LANES), 1, [_ZERO] * KEYS, over_rows)
            # One key after the other: those that fill up a block are repeated.
            for total, target in zip(totals, targets, strict=True):
                _store(builder, _add(builder, _load(builder, target, a), total), target, a)
            return []

        _loop(builder, _integer(0), width, LANES, [], body)

    return _procedure(8), generate


@intrinsic
def differentiate_keys(context, softmax, own, scores, through, weights, sizes, bare, grad_weights, grad_sizes):
    """For eight keys, from scores s (or powers) and the gradient u through values:

    grad_weights += s u and grad_sizes += s b, then through = s weights and scores = u weights + b sizes, times s for
    powers. ``softmax`` and ``own`` are 0 or 1; without ``own`` sizes are weights.
    """

    def generate(_, builder, signature, args):
        softmax, own, scores, through, weights, sizes, bare, grad_weights, grad_sizes = args
        softmax, own = (builder.icmp_signed("!=", flag, _integer(0)) for flag in (softmax, own))
        push = _load(builder, bare, _integer(0))
        for c in range(KEYS):
            place = _integer(LANES * c)
            score, pull = _load(builder, scores, place), _load(builder, through, place)
            weight, size = _load(builder, weights, place), _load(builder, sizes, place)
            by_size = _multiply(builder, score, push)
            by_weight = _multiply_add(builder, builder.select(own, _ZERO, by_size), score, pull)
            _store(builder, _add(builder, _load(builder, grad_weights, place), by_weight), grad_weights, place)
            with builder.if_then(own):
                _store(builder, _add(builder, _load(builder, grad_sizes, place), by_size), grad_sizes, place)
            slope = _multiply_add(builder, _multiply(builder, size, push), weight, pull)
            _store(builder, _multiply(builder, score, weight), through, place)
            _store(builder, builder.select(softmax, _multiply(builder, slope, score), slope), scores, place)

    return _procedure(9), generate


def _attend_four(builder: Any, alone: bool, args: Any) -> Any:
    """Add to a row of attention what it takes from ``count`` keys, four at a time; returns their denominator."""
    row, k, v, width, depth, keys, rest, count, weights, sizes, out = args
    last = builder.sub(count, _integer(1))
    zero = ir.Constant(_FLOAT, 0.0)

    def four(p, totals):
        places, valid = [], []
        for c in range(4):
            place = builder.add(p, _integer(c))
            inside = builder.icmp_signed("<", place, count)
            valid.append(inside)
            place = builder.select(inside, place, last)
            places.append(_load_integer(builder, rest, place) if alone else place)
        nodes = [_load_integer(builder, keys, place) for place in places]
        left = [builder.add(k, builder.shl(builder.mul(node, width), _integer(2))) for node in nodes]
        right = [builder.add(v, builder.shl(builder.mul(node, depth), _integer(2))) for node in nodes]
        factors, total = [], totals[0]
        for place, inside, score in zip(places, valid, _row_dots(builder, row, left, width), strict=True):
            slot = builder.shl(place, _integer(4)) if alone else place
            weight, size = (builder.load(_pointer(builder, base, slot, _FLOAT)) for base in (weights, sizes))
            total = _multiply_add(builder, total, score, builder.select(inside, size, zero))
            factors.append(_multiply(builder, score, builder.select(inside, weight, zero)))
        _add_rows(builder, factors, right, out, depth)
        return [total]

    return _loop(builder, _integer(0), count, 4, [zero], four)[0]


@intrinsic
def attend_alone(context, row, k, v, width, depth, keys, rest, count, weights, sizes, out):
    """Add to a row of attention what it takes from keys[rest[p]], whose weights and sizes stand at 16 * rest[p]."""

    def generate(_, builder, signature, args):
        return _attend_four(builder, True, args)

    return types.float32(*[types.intp] * 11), generate


@intrinsic
def attend_row(context, row, k, v, width, depth, columns, count, weights, sizes, out):
    """Add to a row of attention what it takes from columns[p], whose weights and sizes stand at p."""

    def generate(_, builder, signature, args):
        row, k, v, width, depth, columns, count, weights, sizes, out = args
        return _attend_four(builder, False, (row, k, v, width, depth, columns, None, count, weights, sizes, out))

    return types.float32(*[types.intp] * 10), generate


@intrinsic
def dot_row(context, left, right, width):
    """The product of two rows."""

    def generate(_, builder, signature, args):
        left, right, width = args
        return _row_dots(builder, left, [right], width)[0]

    return types.float32(*[types.intp] * 3), generate


@intrinsic
def add_row(context, factor, source, target, width):
    """Add a row times a factor to another."""

    def generate(_, builder, signature, args):
        factor, source, target, width = args
        _add_rows(builder, [factor], [source], target, width)

    return types.void(types.float32, *[types.intp] * 3), generate


def _transpose(builder: Any, vectors: list[Any]) -> list[Any]:
    """Sixteen vectors transposed: four times, vectors r and r + 8 are interleaved."""
    half = LANES // 2
    low = [k // 2 + (k % 2) * LANES for k in range(LANES)]
    masks = [ir.Constant(ir.VectorType(_INT32, LANES), [k + shift for k in low]) for shift in (0, half)]
    for _ in range(4):
        vectors = [builder.shuffle_vector(vectors[r], vectors[r + half], mask) for r in range(half) for mask in masks]
    return vectors


@intrinsic
def rows_to_lanes(context, rows, width, lanes):
    """lanes[a, r] = rows[r, a] for 16 rows of ``width``, a multiple of 16."""

    def generate(_, builder, signature, args):
        rows, width, lanes = args

        def body(a, _):
            vectors = [_load(builder, rows, builder.add(builder.mul(_integer(r), width), a)) for r in range(LANES)]
            for k, vector in enumerate(_transpose(builder, vectors)):
                _store(builder, vector, lanes, builder.shl(builder.add(a, _integer(k)), _integer(4)))
            return []

        _loop(builder, _integer(0), width, LANES, [], body)

    return _procedure(3), generate


@intrinsic
def lanes_to_rows(context, lanes, width, rows):
    """rows[r, a] = lanes[a, r] for 16 rows of ``width``, a multiple of 16."""

    def generate(_, builder, signature, args):
        lanes, width, rows = args

        def body(a, _):
            vectors = [
                _load(builder, lanes, builder.shl(builder.add(a, _integer(k)), _integer(4))) for k in range(LANES)
            ]
            for r, vector in enumerate(_transpose(builder, vectors)):
                _store(builder, vector, rows, builder.add(builder.mul(_integer(r), width), a))
            return []

        _loop(builder, _integer(0), width, LANES, [], body)

    return _procedure(3), generate


@intrinsic
def weigh(context, scores, weights, sizes, count, totals):
    """totals[:] = sum_c scores[c, :] sizes[c, :], then scores *= weights, for ``count`` numbers."""

    def generate(_, builder, signature, args):
        scores, weights, sizes, count, totals = args

        def body(place, sums):
            score = _load(builder, scores, place)
            _store(builder, _multiply(builder, score, _load(builder, weights, place)), scores, place)
            return [_multiply_add(builder, sums[0], score, _load(builder, sizes, place))]

        (total,) = _loop(builder, _integer(0), count, LANES, [_ZERO], body)
        _store(builder, total, totals, _integer(0))

    return _procedure(5), generate


@intrinsic
def spread_column(context, feature, rows, values, first, end, where, weights):
    """weights[where[rows[p]], :] += values[p] feature[:] for first <= p < end."""

    def generate(_, builder, signature, args):
        feature, rows, values, first, end, where, weights = args
        lanes = _load(builder, feature, _integer(0))

        def body(p, _):
            key = _load_integer(builder, where, _load_integer(builder, rows, p))
            place = builder.shl(key, _integer(4))
            total = _multiply_add(builder, _load(builder, weights, place), lanes, _broadcast(builder, values, p))
            _store(builder, total, weights, place)
            return []

        _loop(builder, first, end, 1, [], body)

    return _procedure(7), generate


@intrinsic
def collect_column(context, feature, rows, values, first, end, where, grads, grad_feature, grad_values):
    """The derivative of `spread_column`: grad_feature[:] = sum_p values[p] grads[where[rows[p]], :], and
    grad_values[p] += sum over lanes of grads[where[rows[p]], :] feature[:].
    """

    def generate(_, builder, signature, args):
        feature, rows, values, first, end, where, grads, grad_feature, grad_values = args
        lanes = _load(builder, feature, _integer(0))

        def body(p, sums):
            key = _load_integer(builder, where, _load_integer(builder, rows, p))
            grad = _load(builder, grads, builder.shl(key, _integer(4)))
            total = _total(builder, _multiply(builder, grad, lanes))
            address = _pointer(builder, grad_values, p, _FLOAT)
            builder.store(builder.fadd(builder.load(address), total, flags=_FAST), address)
            return [_multiply_add(builder, sums[0], grad, _broadcast(builder, values, p))]

        (total,) = _loop(builder, first, end, 1, [_ZERO], body)
        _store(builder, total, grad_feature, _integer(0))

    return _procedure(9), generate
