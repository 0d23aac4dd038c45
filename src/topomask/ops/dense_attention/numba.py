"""Dense attention for few tokens and narrow heads, compiled.

Queries (or keys) are in the lanes of vectors, 16 at a time, and are multiplied by keys (or queries), eight at a time.
The tokens of one input and head stay in the first-level cache, and scores are never written to memory: the gradients of
queries, and those of keys and values, both recompute the scores that they need.

Inner loops use LLVM's vector types, and take addresses and integers: ``lanes[a, :]`` is number a of 16 tokens,
``rows[c, a]`` is number a of other token c, which is broadcast.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit
from numba.extending import intrinsic
from torch import Tensor

from topomask.ops.backend import ALLOCATING, EXACT, MAX_PARTS, BlockKernel, arrays
from topomask.ops.dense_attention import Attention
from topomask.ops.llvm import (
    KEYS,
    ZERO,
    add_to,
    add_to_lanes,
    broadcast,
    integer,
    lane_dots,
    load,
    multiply,
    multiply_add,
    procedure,
    store,
)
from topomask.ops.pair_attention import LANES
from topomask.ops.quotient import smallest_total

_SMALLEST = np.float32(smallest_total(torch.float32))


class Tokens(NamedTuple):
    """Queries, keys and values, or their gradients, [B, H, N, width]."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray


class Blocks(NamedTuple):
    """A mask in blocks of 16 tokens of one kind, each with all tokens of the other kind, [V, blocks, others, 16]."""

    weights: np.ndarray
    magnitudes: np.ndarray


class OutputGrads(NamedTuple):
    """Gradients of numerators, [B, H, N_q, D], and of denominators, [B, H, N_q, 1]."""

    numerator: np.ndarray
    denominator: np.ndarray


def _rows(builder: Any, base: Any, width: Any) -> list[Any]:
    """Return the addresses of eight rows."""
    return [builder.add(base, builder.mul(width, integer(4 * c))) for c in range(KEYS)]


def _places() -> list[Any]:
    return [integer(LANES * c) for c in range(KEYS)]


@intrinsic
def _attend_keys(context, queries, keys, width, weights, magnitudes, totals, values, value_dim, out):
    """Add the contributions of eight keys to the numerators and denominators of 16 queries."""

    def generate(_, builder, signature, args):
        queries, keys, width, weights, magnitudes, totals, values, value_dim, out = args
        total, weighted = load(builder, totals, integer(0)), []
        for place, score in zip(
            _places(), lane_dots(builder, queries, _rows(builder, keys, width), width), strict=True
        ):
            total = multiply_add(builder, total, score, load(builder, magnitudes, place))
            weighted.append(multiply(builder, score, load(builder, weights, place)))
        store(builder, total, totals, integer(0))
        add_to_lanes(builder, weighted, _rows(builder, values, value_dim), value_dim, out)

    return procedure(9), generate


@intrinsic
def _differentiate_queries(context, grads, values, value_dim, weights, magnitudes, falls, keys, width, out):
    """Add the contributions of eight keys to the gradients of 16 queries.

    ``grads`` are the gradients of the numerators of these queries, ``falls`` those of their denominators.
    """

    def generate(_, builder, signature, args):
        grads, values, value_dim, weights, magnitudes, falls, keys, width, out = args
        fall, slopes = load(builder, falls, integer(0)), []
        for place, by_value in zip(
            _places(), lane_dots(builder, grads, _rows(builder, values, value_dim), value_dim), strict=True
        ):
            by_total = multiply(builder, fall, load(builder, magnitudes, place))
            slopes.append(multiply_add(builder, by_total, by_value, load(builder, weights, place)))
        add_to_lanes(builder, slopes, _rows(builder, keys, width), width, out)

    return procedure(9), generate


@intrinsic
def _differentiate_keys(
    context, keys, queries, width, values, grads, value_dim, weights, magnitudes, falls, learns, separate,
    grad_weights, grad_magnitudes, grad_keys, grad_values,
):  # fmt: skip
    """Add the contributions of eight queries to the gradients of 16 keys and values.

    Also adds up gradients of the mask if ``learns`` is set, separately for weights and magnitudes if ``separate`` is.
    """

    def generate(_, builder, signature, args):
        keys, queries, width, values, grads, value_dim, weights, magnitudes, falls, learns, separate = args[:11]
        grad_weights, grad_magnitudes, grad_keys, grad_values = args[11:]
        is_learnt, is_separate = (builder.icmp_signed("!=", flag, integer(0)) for flag in (learns, separate))
        scores = lane_dots(builder, keys, _rows(builder, queries, width), width)
        by_values = lane_dots(builder, values, _rows(builder, grads, value_dim), value_dim)
        weighted, slopes = [], []
        for c, (place, score, by_value) in enumerate(zip(_places(), scores, by_values, strict=True)):
            weight, magnitude = load(builder, weights, place), load(builder, magnitudes, place)
            fall = broadcast(builder, falls, integer(c))
            with builder.if_then(is_learnt):
                by_total = multiply(builder, score, fall)
                joined = builder.select(is_separate, ZERO, by_total)
                add_to(builder, multiply_add(builder, joined, score, by_value), grad_weights, place)
                with builder.if_then(is_separate):
                    add_to(builder, by_total, grad_magnitudes, place)
            weighted.append(multiply(builder, score, weight))
            slopes.append(multiply_add(builder, multiply(builder, fall, magnitude), by_value, weight))
        add_to_lanes(builder, weighted, _rows(builder, grads, value_dim), value_dim, grad_values)
        add_to_lanes(builder, slopes, _rows(builder, queries, width), width, grad_keys)

    return procedure(15), generate


@njit(**EXACT)
def _copy_rows(source, out):
    """Copy a matrix; rows of ``out`` beyond it stay 0."""
    for i in range(source.shape[0]):
        for a in range(source.shape[1]):
            out[i, a] = source[i, a]


@njit(**EXACT)
def _copy_lanes(source, out):
    """Copy a matrix [N, width] into blocks [width, 16]; lanes beyond the last token stay 0."""
    for i in range(source.shape[0]):
        for a in range(source.shape[1]):
            out[i // LANES, a, i % LANES] = source[i, a]


@njit(**EXACT)
def _write_lanes(source, out):
    """Copy blocks [width, 16] into a matrix [N, width]."""
    for i in range(out.shape[0]):
        for a in range(out.shape[1]):
            out[i, a] = source[i // LANES, a, i % LANES]


@njit(**EXACT)
def _normalize(normalize, totals, out):
    """Write the normalisers of a block to ``out``, and replace them with what its numerators are divided by."""
    for r in range(min(LANES, out.shape[0])):
        out[r, 0] = totals[r] if normalize else np.float32(1)
    for r in range(LANES):
        total = totals[r] if normalize else np.float32(1)
        totals[r] = np.float32(np.inf) if abs(total) <= _SMALLEST else total


@njit(**ALLOCATING)
def _forward_part(first, last, tokens, blocks, normalize, out, denominator):
    """Attend for items ``first`` to ``last`` of the batch, flattened with heads."""
    q, k, v = tokens
    heads, width, value_dim = q.shape[1], q.shape[3], v.shape[3]
    mask_heads, num_blocks, padded_keys, _ = blocks.weights.shape
    queries = np.zeros((num_blocks, width, LANES), np.float32)
    keys, values = np.zeros((padded_keys, width), np.float32), np.zeros((padded_keys, value_dim), np.float32)
    sums, totals = np.zeros((num_blocks, value_dim, LANES), np.float32), np.zeros((num_blocks, LANES), np.float32)
    for item in range(first, last):
        batch, head = item // heads, item % heads
        own = head if mask_heads > 1 else 0
        weights, magnitudes = blocks.weights[own], blocks.magnitudes[own]
        _copy_lanes(q[batch, head], queries)
        _copy_rows(k[batch, head], keys)
        _copy_rows(v[batch, head], values)
        sums[:] = 0
        totals[:] = 0
        for block in range(num_blocks):
            for j in range(0, padded_keys, KEYS):
                _attend_keys(
                    queries[block].ctypes.data, keys[j].ctypes.data, width, weights[block, j].ctypes.data,
                    magnitudes[block, j].ctypes.data, totals[block].ctypes.data, values[j].ctypes.data, value_dim,
                    sums[block].ctypes.data,
                )  # fmt: skip
            _normalize(normalize, totals[block], denominator[batch, head, block * LANES :])
            sums[block] /= totals[block]
        _write_lanes(sums, out[batch, head])


@njit(**ALLOCATING)
def _backward_part(first, last, tokens, output_grads, by_query, by_key, learns, separate, grads, grad_by_key):
    """Compute gradients for items ``first`` to ``last``; those of the mask are added up over these, by head."""
    q, k, v = tokens
    heads, width, value_dim = q.shape[1], q.shape[3], v.shape[3]
    mask_heads, query_blocks, padded_keys, _ = by_query.weights.shape
    _, key_blocks, padded_queries, _ = by_key.weights.shape
    queries, keys = np.zeros((padded_queries, width), np.float32), np.zeros((padded_keys, width), np.float32)
    grad_rows, values = (
        np.zeros((padded_queries, value_dim), np.float32),
        np.zeros((padded_keys, value_dim), np.float32),
    )
    falls = np.zeros(query_blocks * LANES, np.float32)
    grad_lanes = np.zeros((query_blocks, value_dim, LANES), np.float32)
    key_lanes = np.zeros((key_blocks, width, LANES), np.float32)
    value_lanes = np.zeros((key_blocks, value_dim, LANES), np.float32)
    grad_queries = np.zeros((query_blocks, width, LANES), np.float32)
    grad_keys, grad_values = np.zeros_like(key_lanes), np.zeros_like(value_lanes)
    for item in range(first, last):
        batch, head = item // heads, item % heads
        own = head if mask_heads > 1 else 0
        _copy_rows(q[batch, head], queries)
        _copy_rows(k[batch, head], keys)
        _copy_rows(v[batch, head], values)
        _copy_rows(output_grads.numerator[batch, head], grad_rows)
        _copy_lanes(k[batch, head], key_lanes)
        _copy_lanes(v[batch, head], value_lanes)
        _copy_lanes(output_grads.numerator[batch, head], grad_lanes)
        falls[: q.shape[2]] = output_grads.denominator[batch, head, :, 0]
        grad_queries[:] = 0
        grad_keys[:] = 0
        grad_values[:] = 0
        weights, magnitudes = by_query.weights[own], by_query.magnitudes[own]
        for block in range(query_blocks):
            for j in range(0, padded_keys, KEYS):
                _differentiate_queries(
                    grad_lanes[block].ctypes.data, values[j].ctypes.data, value_dim, weights[block, j].ctypes.data,
                    magnitudes[block, j].ctypes.data, falls[block * LANES :].ctypes.data, keys[j].ctypes.data, width,
                    grad_queries[block].ctypes.data,
                )  # fmt: skip
        weights, magnitudes = by_key.weights[own], by_key.magnitudes[own]
        for block in range(key_blocks):
            for i in range(0, padded_queries, KEYS):
                _differentiate_keys(
                    key_lanes[block].ctypes.data, queries[i].ctypes.data, width, value_lanes[block].ctypes.data,
                    grad_rows[i].ctypes.data, value_dim, weights[block, i].ctypes.data,
                    magnitudes[block, i].ctypes.data, falls[i:].ctypes.data, learns, separate,
                    grad_by_key.weights[head, block, i].ctypes.data, grad_by_key.magnitudes[head, block, i].ctypes.data,
                    grad_keys[block].ctypes.data, grad_values[block].ctypes.data,
                )  # fmt: skip
        _write_lanes(grad_queries, grads.q[batch, head])
        _write_lanes(grad_keys, grads.k[batch, head])
        _write_lanes(grad_values, grads.v[batch, head])


@njit(**ALLOCATING)
def _part_of(blocks, part):
    return Blocks(blocks.weights[part], blocks.magnitudes[part])


def _forward(start_block, stop_block, parts, tokens, blocks, normalize, out, denominator):
    """Attention [B, H, N_q, D] and its denominator [B, H, N_q, 1]."""
    for part in range(start_block, stop_block):
        _forward_part(parts[part], parts[part + 1], tokens, blocks, normalize, out, denominator)


def _backward(
    start_block, stop_block, parts, tokens, output_grads, by_query, by_key, learns, separate, grads, grad_by_key
):
    """Gradients of tokens; and of the mask, for every part of the batch, [parts, H, blocks of keys, queries, 16]."""
    for part in range(start_block, stop_block):
        _backward_part(
            parts[part], parts[part + 1], tokens, output_grads, by_query, by_key, learns, separate, grads,
            _part_of(grad_by_key, part),
        )  # fmt: skip


def _to_blocks(start_block, stop_block, matrices, out):
    """Copy matrices [V, N, others] into blocks of 16 rows, [V, blocks, others, 16], padded with 0."""
    num_blocks = out.shape[1]
    for number in range(start_block, stop_block):
        head, block = number // num_blocks, number % num_blocks
        out[head, block] = 0
        for r in range(min(LANES, matrices.shape[1] - block * LANES)):
            for j in range(matrices.shape[2]):
                out[head, block, j, r] = matrices[head, block * LANES + r, j]


forward_kernel, backward_kernel = BlockKernel(_forward, allocates=True), BlockKernel(_backward, allocates=True)
blocks_kernel = BlockKernel(_to_blocks)


def _make_blocks(weights: Tensor, magnitudes: Tensor | None) -> Blocks:
    """Rearrange a mask [V, N, others] into blocks of its rows."""
    made = _block(weights)
    return Blocks(made, made if magnitudes is None else _block(magnitudes))


def _block(matrices: Tensor) -> np.ndarray:
    heads, mine, others = matrices.shape
    out = np.empty((heads, -(-mine // LANES), -(-others // KEYS) * KEYS, LANES), np.float32)
    blocks_kernel(out.shape[0] * out.shape[1], matrices.detach().numpy(), out)
    return out


def _unblock(parts: np.ndarray, like: Tensor) -> Tensor:
    """Sum blocks of keys, [parts, H, blocks, queries, 16], over parts, into the shape of a mask [V, N_q, N_k]."""
    total = torch.from_numpy(parts).sum(dim=0).transpose(1, 2).flatten(2)[:, : like.shape[1], : like.shape[2]]
    # All heads may share one mask.
    return total if len(like) == len(total) else total.sum(dim=0, keepdim=True)


def _parts(attention: Attention, max_parts: int) -> np.ndarray:
    """Return where parts of the batch, flattened with heads, begin: one per thread, at most ``max_parts``."""
    count = attention.q.shape[0] * attention.q.shape[1]
    return np.linspace(0, count, max(1, min(torch.get_num_threads(), max_parts, count)) + 1).astype(np.int64)


def attend(attention: Attention) -> tuple[Tensor, Tensor]:
    """Return the result [B, H, N_q, D], and its normaliser [B, H, N_q, 1]."""
    q, k, v, weights, magnitudes, normalize = attention
    out, denominator = q.new_empty(*q.shape[:-1], v.shape[-1]), q.new_empty(*q.shape[:-1], 1)
    blocks, parts = _make_blocks(weights, magnitudes), _parts(attention, q.shape[0] * q.shape[1])
    # Contiguous, as they nearly always are: kernels would be compiled again for every other layout.
    forward_kernel(len(parts) - 1, parts, Tokens(*arrays(q, k, v)), blocks, normalize, *arrays(out, denominator))
    return out, denominator


def attend_backward(
    attention: Attention, grad: Tensor, fall: Tensor | None, wanted: Collection[str]
) -> dict[str, Tensor]:
    """Return gradients by name; the arguments are those of the reference."""
    q, k, v, weights, magnitudes, _ = attention
    fall = grad.new_zeros(*grad.shape[:-1], 1) if fall is None else fall
    by_query = _make_blocks(weights, magnitudes)
    by_key = _make_blocks(weights.mT, None if magnitudes is None else magnitudes.mT)
    # Every part adds up its own gradient of the mask.
    parts, separate = _parts(attention, MAX_PARTS), magnitudes is not None
    learnt = [name for name in wanted if name in Blocks._fields]
    shape = (len(parts) - 1, q.shape[1], *by_key.weights.shape[1:])
    grad_weights = np.zeros(shape, np.float32) if learnt else np.empty(shape, np.float32)
    grad_by_key = Blocks(grad_weights, np.zeros(shape, np.float32) if learnt and separate else grad_weights)
    grads = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v)]
    tokens, grad_tokens, output_grads = (
        Tokens(*arrays(q, k, v)),
        Tokens(*arrays(*grads)),
        OutputGrads(*arrays(grad, fall)),
    )
    flags = int(bool(learnt)), int(separate)
    backward_kernel(len(parts) - 1, parts, tokens, output_grads, by_query, by_key, *flags, grad_tokens, grad_by_key)
    return dict(zip("qkv", grads, strict=True)) | {
        name: _unblock(getattr(grad_by_key, name), weights) for name in learnt
    }
