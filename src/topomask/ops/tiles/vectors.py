"""Inner loops of the tile kernels, in LLVM's vector types: Numba's vectoriser uses neither full-width registers nor
broadcasts from memory.

A tile holds 16 rows (queries) in the lanes of vectors: ``lanes[a, :]`` is feature a of all 16. Another matrix is read
row by row, eight rows (keys) at a time, at any addresses: a number of such a row is broadcast and multiplied by all 16
lanes at once. All arguments are addresses or integers; matrices are float32.
"""

from __future__ import annotations

from numba.extending import intrinsic

from topomask.ops import llvm
from topomask.ops.llvm import (
    KEYS,
    ZERO,
    add_to,
    broadcast,
    integer,
    load,
    loop,
    multiply,
    multiply_add,
    store,
)
from topomask.ops.pair_attention import LANES


@intrinsic
def dot_keys(context, lanes, rows, keys, width, out, next_rows, next_keys, next_width):
    """out[c, :] = sum_a rows[keys[c], a] lanes[a, :] for eight keys; prefetches ``next_rows`` of eight others."""

    def generate(_, builder, signature, args):
        lanes, rows, keys, width, out, next_rows, next_keys, next_width = args
        llvm.fetch_ahead(builder, next_rows, next_keys, next_width)
        for c, total in enumerate(llvm.lane_dots(builder, lanes, llvm.key_rows(builder, rows, keys, width), width)):
            store(builder, total, out, integer(LANES * c))

    return llvm.procedure(8), generate


@intrinsic
def weigh_keys(context, lanes, rows, keys, width, weights, magnitudes, out, totals, next_rows, next_width):
    """As `dot_keys`, with out[c, :] times weights[c, :]; and totals[:] += sum_c products[c, :] magnitudes[c, :]."""

    def generate(_, builder, signature, args):
        lanes, rows, keys, width, weights, magnitudes, out, totals, next_rows, next_width = args
        llvm.fetch_ahead(builder, next_rows, keys, next_width)
        total = load(builder, totals, integer(0))
        for c, score in enumerate(llvm.lane_dots(builder, lanes, llvm.key_rows(builder, rows, keys, width), width)):
            place = integer(LANES * c)
            total = multiply_add(builder, total, score, load(builder, magnitudes, place))
            store(builder, multiply(builder, score, load(builder, weights, place)), out, place)
        store(builder, total, totals, integer(0))

    return llvm.procedure(10), generate


@intrinsic
def add_keys(context, scores, rows, keys, width, lanes, next_rows, next_width):
    """lanes[a, :] += sum_c scores[c, :] rows[keys[c], a] for eight keys; prefetches ``next_rows`` of the next eight."""

    def generate(_, builder, signature, args):
        scores, rows, keys, width, lanes, next_rows, next_width = args
        sources = llvm.key_rows(builder, rows, keys, width)
        llvm.fetch_ahead(builder, next_rows, builder.add(keys, integer(4 * KEYS)), next_width)
        weights = [load(builder, scores, integer(LANES * c)) for c in range(KEYS)]
        llvm.add_to_lanes(builder, weights, sources, width, lanes)

    return llvm.procedure(7), generate


@intrinsic
def add_rows(context, scores, block, width, out, keys, next_rows, next_keys, next_width):
    """out[keys[c], :] += sum_r scores[c, r] block[r, :] for eight keys and rows of ``width``, a multiple of 16;
    prefetches ``next_rows`` of eight others.
    """

    def generate(_, builder, signature, args):
        scores, block, width, out, keys, next_rows, next_keys, next_width = args
        llvm.fetch_ahead(builder, next_rows, next_keys, next_width)
        targets = llvm.key_rows(builder, out, keys, width)

        def body(a, _):
            def over_rows(r, totals):
                source = load(builder, block, builder.add(builder.mul(r, width), a))
                return [
                    multiply_add(builder, total, broadcast(builder, scores, builder.add(r, integer(LANES * c))), source)
                    for c, total in enumerate(totals)
                ]

            totals = loop(builder, integer(0), integer(LANES), 1, [ZERO] * KEYS, over_rows)
            # One key after the other: blocks are filled up by repeating a key.
            for total, target in zip(totals, targets, strict=True):
                add_to(builder, total, target, a)
            return []

        loop(builder, integer(0), width, LANES, [], body)

    return llvm.procedure(8), generate


@intrinsic
def differentiate_keys(
    context, softmax, separate, scores, value_slopes, weights, magnitudes, total_slopes, grad_weights, grad_magnitudes
):
    """Differentiate eight keys, given their scores s (powers for softmax attention), the gradients u of s times weight,
    which is in the numerator, and the gradients t of s times magnitude, which is in the denominator.

    grad_weights += s u and grad_magnitudes += s t; then value_slopes = s weights, and scores = u weights + t
    magnitudes, times s for softmax attention. ``softmax`` and ``separate`` are 0 or 1; without ``separate``, magnitudes
    are the weights.
    """

    def generate(_, builder, signature, args):
        softmax, separate, scores, value_slopes, weights, magnitudes, total_slopes, grad_weights, grad_magnitudes = args
        softmax, separate = (builder.icmp_signed("!=", flag, integer(0)) for flag in (softmax, separate))
        by_total = load(builder, total_slopes, integer(0))
        for c in range(KEYS):
            place = integer(LANES * c)
            score, by_value = load(builder, scores, place), load(builder, value_slopes, place)
            weight, magnitude = load(builder, weights, place), load(builder, magnitudes, place)
            grad_magnitude = multiply(builder, score, by_total)
            grad_weight = multiply_add(builder, builder.select(separate, ZERO, grad_magnitude), score, by_value)
            add_to(builder, grad_weight, grad_weights, place)
            with builder.if_then(separate):
                add_to(builder, grad_magnitude, grad_magnitudes, place)
            slope = multiply_add(builder, multiply(builder, magnitude, by_total), weight, by_value)
            store(builder, multiply(builder, score, weight), value_slopes, place)
            store(builder, builder.select(softmax, multiply(builder, slope, score), slope), scores, place)

    return llvm.procedure(9), generate


@intrinsic
def weigh(context, scores, weights, magnitudes, count, totals):
    """totals[:] = sum_c scores[c, :] magnitudes[c, :], then scores *= weights, for ``count`` numbers."""

    def generate(_, builder, signature, args):
        scores, weights, magnitudes, count, totals = args

        def body(place, sums):
            score = load(builder, scores, place)
            store(builder, multiply(builder, score, load(builder, weights, place)), scores, place)
            return [multiply_add(builder, sums[0], score, load(builder, magnitudes, place))]

        (total,) = loop(builder, integer(0), count, LANES, [ZERO], body)
        store(builder, total, totals, integer(0))

    return llvm.procedure(5), generate


@intrinsic
def spread_column(context, feature, rows, values, first, end, key_slots, weights):
    """weights[key_slots[rows[p]], :] += values[p] feature[:] for first <= p < end."""

    def generate(_, builder, signature, args):
        feature, rows, values, first, end, key_slots, weights = args
        lanes = load(builder, feature, integer(0))

        def body(p, _):
            key = llvm.load_integer(builder, key_slots, llvm.load_integer(builder, rows, p))
            place = builder.shl(key, integer(4))
            total = multiply_add(builder, load(builder, weights, place), lanes, broadcast(builder, values, p))
            store(builder, total, weights, place)
            return []

        loop(builder, first, end, 1, [], body)

    return llvm.procedure(7), generate


@intrinsic
def collect_column(context, feature, rows, values, first, end, key_slots, grads, grad_feature, grad_values):
    """The derivative of `spread_column`: grad_feature[:] = sum_p values[p] grads[key_slots[rows[p]], :], and
    grad_values[p] += sum over lanes of grads[key_slots[rows[p]], :] feature[:].
    """

    def generate(_, builder, signature, args):
        feature, rows, values, first, end, key_slots, grads, grad_feature, grad_values = args
        lanes = load(builder, feature, integer(0))

        def body(p, sums):
            key = llvm.load_integer(builder, key_slots, llvm.load_integer(builder, rows, p))
            grad = load(builder, grads, builder.shl(key, integer(4)))
            total = llvm.lane_sum(builder, multiply(builder, grad, lanes))
            address = llvm.pointer(builder, grad_values, p, llvm.FLOAT)
            builder.store(builder.fadd(builder.load(address), total, flags=llvm.FAST), address)
            return [multiply_add(builder, sums[0], grad, broadcast(builder, values, p))]

        (total,) = loop(builder, first, end, 1, [ZERO], body)
        store(builder, total, grad_feature, integer(0))

    return llvm.procedure(9), generate
