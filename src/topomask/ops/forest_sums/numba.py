"""Sums over forests in two passes, compiled.

Threads share inputs, heads, columns and, if these are few, trees. A thread stores the sums of its columns in float64:
on a path of 10^5 nodes, there are 10^5 additions, and as many multiplications by a factor close to 1. Leaves need no
stored sums.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from topomask.ops.backend import FAST, BlockKernel, arrays
from topomask.ops.forest_sums import Sums
from topomask.ops.rooted_forest import RootedForest, tree_pointers
from topomask.ops.rooted_forest.kernels import LAST, LEAF

# The most columns that a thread processes at a time: narrow blocks of wide rows defeat prefetching, ...
_MAX_WIDTH = 256
# ... but all threads together store no more sums than this, unless that would leave them only a few columns.
_MAX_SCRATCH = 1 << 26
_MIN_WIDTH = 16

# Rows have unsigned indices, for which Numba does not check whether they count from the end.
_INNER: dict[str, Any] = FAST | {"forceinline": True}
_U = np.uint64


@njit(**_INNER)
def _begin(sums, i, x, row, start, width):
    """Initialise the sum of a place with its own value."""
    for c in range(width):
        sums[i, c] = x[row, start + c]


@njit(**_INNER)
def _add(sums, p, i, factor, width):
    for c in range(width):
        sums[p, c] += factor * sums[i, c]


@njit(**_INNER)
def _add_leaf(sums, p, x, row, factor, start, width):
    for c in range(width):
        sums[p, c] += factor * np.float64(x[row, start + c])


@njit(**_INNER)
def _begin_and_add(sums, p, x, row_above, i, factor, start, width):
    for c in range(width):
        sums[p, c] = x[row_above, start + c] + factor * sums[i, c]


@njit(**_INNER)
def _begin_and_add_leaf(sums, p, x, row_above, row, factor, start, width):
    for c in range(width):
        sums[p, c] = x[row_above, start + c] + factor * np.float64(x[row, start + c])


@njit(**_INNER)
def _write(sums, i, out, row, start, width, scale, more):
    if more:
        for c in range(width):
            out[row, start + c] += scale * sums[i, c]
    else:
        for c in range(width):
            out[row, start + c] = scale * sums[i, c]


@njit(**_INNER)
def _mix(sums, i, p, factor, rest, width):
    """Combine the sum below a place with the total of its parent, which contains a part of the former."""
    for c in range(width):
        sums[i, c] = rest * sums[i, c] + factor * sums[p, c]


@njit(**_INNER)
def _mix_leaf(sums, p, x, out, row, factor, rest, start, width, scale, more):
    if more:
        for c in range(width):
            out[row, start + c] += scale * (rest * np.float64(x[row, start + c]) + factor * sums[p, c])
    else:
        for c in range(width):
            out[row, start + c] = scale * (rest * np.float64(x[row, start + c]) + factor * sums[p, c])


@njit(**_INNER)
def _add_and_keep(sums, others, p, i, factor, width):
    """Add to the sum of the parent, and store its value before: the parent and some siblings, without this place."""
    for c in range(width):
        so_far = sums[p, c]
        others[i, c] = so_far
        sums[p, c] = so_far + factor * sums[i, c]


@njit(**_INNER)
def _spread(sums, others, p, i, factor, width):
    """Complete the sum outside the subtree of this place, as seen from it; pass its own sum on to the next sibling."""
    for c in range(width):
        before = others[p, c]
        others[i, c] = factor * (others[i, c] + before)
        others[p, c] = before + factor * sums[i, c]


@njit(**_INNER)
def _write_both(sums, others, i, out, row, start, width, scale, more):
    if more:
        for c in range(width):
            out[row, start + c] += scale * (sums[i, c] + others[i, c])
    else:
        for c in range(width):
            out[row, start + c] = scale * (sums[i, c] + others[i, c])


@njit(**_INNER)
def _clear(sums, i, width):
    for c in range(width):
        sums[i, c] = 0.0


@njit(**_INNER)
def _dot(x, i, start, y, j, width):
    total = 0.0
    for c in range(width):
        total += np.float64(x[i, start + c]) * y[j, c]
    return total


@njit(**_INNER)
def _cross_without(a, b, i, p, factor, width):
    """Multiply sums below by sums outside, found by subtraction: in float64, harmless for factors of at most 1."""
    total = 0.0
    for c in range(width):
        below_a, below_b = a[i, c], b[i, c]
        total += below_a * (b[p, c] - factor * below_b) + below_b * (a[p, c] - factor * below_a)
    return factor * total


@njit(**_INNER)
def _cross(a, b, others_a, others_b, i, width):
    """Multiply sums below by sums outside, both as seen from here."""
    total = 0.0
    for c in range(width):
        total += a[i, c] * others_b[i, c] + b[i, c] * others_a[i, c]
    return total


def _forward(
    start_block, stop_block, nodes, above, kinds, factors, rests, coefficients, x, out, starts, width, scratch
):
    """Compute sums with factors of at most 1: leaves to roots, then back."""
    inputs, heads, _, columns = x.shape
    terms, chunks, blocks, threads = factors.shape[1], starts.shape[0] - 1, -(-columns // width), scratch.shape[0]
    for thread in range(start_block, stop_block):
        sums = scratch[thread, 0]
        for item in range(thread, inputs * heads * blocks * chunks, threads):
            chunk, rest = item % chunks, item // chunks
            block, rest = rest % blocks, rest // blocks
            g, h = rest // heads, rest % heads
            source, target = x[g, h], out[g, h]
            lo, hi = starts[chunk], starts[chunk + 1]
            start, w = _U(block * width), min(width, columns - block * width)
            for r in range(terms):
                scale, more = coefficients[h, r], r > 0
                for i in range(hi - 1, lo - 1, -1):
                    p, kind, row, factor = above[i], kinds[i], _U(nodes[i]), factors[h, r, i]
                    if p < 0:
                        if kind & LEAF:
                            _begin(sums, _U(i - lo), source, row, start, w)
                    elif kind & LEAF:
                        if kind & LAST:
                            _begin_and_add_leaf(sums, _U(p - lo), source, _U(nodes[p]), row, factor, start, w)
                        else:
                            _add_leaf(sums, _U(p - lo), source, row, factor, start, w)
                    elif kind & LAST:
                        _begin_and_add(sums, _U(p - lo), source, _U(nodes[p]), _U(i - lo), factor, start, w)
                    else:
                        _add(sums, _U(p - lo), _U(i - lo), factor, w)
                for i in range(lo, hi):
                    p, row, factor, left = above[i], _U(nodes[i]), factors[h, r, i], rests[h, r, i]
                    if p >= 0 and kinds[i] & LEAF:
                        _mix_leaf(sums, _U(p - lo), source, target, row, factor, left, start, w, scale, more)
                        continue
                    if p >= 0:
                        _mix(sums, _U(i - lo), _U(p - lo), factor, left, w)
                    _write(sums, _U(i - lo), target, row, start, w, scale, more)


def _forward_growing(
    start_block, stop_block, nodes, above, kinds, factors, rests, coefficients, x, out, starts, width, scratch
):
    """Compute sums with any factors: nothing is subtracted, since the difference could be lost to rounding."""
    inputs, heads, _, columns = x.shape
    terms, chunks, blocks, threads = factors.shape[1], starts.shape[0] - 1, -(-columns // width), scratch.shape[0]
    for thread in range(start_block, stop_block):
        sums, others = scratch[thread, 0], scratch[thread, 1]
        for item in range(thread, inputs * heads * blocks * chunks, threads):
            chunk, rest = item % chunks, item // chunks
            block, rest = rest % blocks, rest // blocks
            g, h = rest // heads, rest % heads
            source, target = x[g, h], out[g, h]
            lo, hi = starts[chunk], starts[chunk + 1]
            start, w = _U(block * width), min(width, columns - block * width)
            for r in range(terms):
                for i in range(lo, hi):
                    _begin(sums, _U(i - lo), source, _U(nodes[i]), start, w)
                for i in range(hi - 1, lo - 1, -1):
                    if above[i] >= 0:
                        _add_and_keep(sums, others, _U(above[i] - lo), _U(i - lo), factors[h, r, i], w)
                for i in range(lo, hi):
                    if above[i] >= 0:
                        _spread(sums, others, _U(above[i] - lo), _U(i - lo), factors[h, r, i], w)
                    else:
                        _clear(others, _U(i - lo), w)
                    row = _U(nodes[i])
                    _write_both(sums, others, _U(i - lo), target, row, start, w, coefficients[h, r], r > 0)


def _backward(
    start_block, stop_block, nodes, above, factors, rests, coefficients, x, grad, grad_x, logs, scales, starts, width,
    scratch,
):  # fmt: skip
    """Compute gradients with factors of at most 1: of x, and per thread of logarithms and coefficients."""
    inputs, heads, _, columns = x.shape
    terms, chunks, blocks, threads = factors.shape[1], starts.shape[0] - 1, -(-columns // width), scratch.shape[0]
    for thread in range(start_block, stop_block):
        a, b = scratch[thread, 0], scratch[thread, 1]
        for item in range(thread, inputs * heads * blocks * chunks, threads):
            chunk, rest = item % chunks, item // chunks
            block, rest = rest % blocks, rest // blocks
            g, h = rest // heads, rest % heads
            source, slope, target = x[g, h], grad[g, h], grad_x[g, h]
            lo, hi = starts[chunk], starts[chunk + 1]
            start, w = _U(block * width), min(width, columns - block * width)
            for r in range(terms):
                scale = coefficients[h, r]
                for i in range(lo, hi):
                    _begin(a, _U(i - lo), source, _U(nodes[i]), start, w)
                    _begin(b, _U(i - lo), slope, _U(nodes[i]), start, w)
                for i in range(hi - 1, lo - 1, -1):
                    if above[i] >= 0:
                        _add(a, _U(above[i] - lo), _U(i - lo), factors[h, r, i], w)
                        _add(b, _U(above[i] - lo), _U(i - lo), factors[h, r, i], w)
                for i in range(lo, hi):
                    here, row = _U(i - lo), _U(nodes[i])
                    if above[i] >= 0:
                        p, factor, left = _U(above[i] - lo), factors[h, r, i], rests[h, r, i]
                        logs[thread, h, r, i] += scale * _cross_without(a, b, here, p, factor, w)
                        _mix(a, here, p, factor, left, w)
                        _mix(b, here, p, factor, left, w)
                    scales[thread, h, r] += _dot(slope, row, start, a, here, w)
                    _write(b, here, target, row, start, w, scale, r > 0)


def _backward_growing(
    start_block, stop_block, nodes, above, factors, rests, coefficients, x, grad, grad_x, logs, scales, starts, width,
    scratch,
):  # fmt: skip
    """Compute the same gradients with any factors."""
    inputs, heads, _, columns = x.shape
    terms, chunks, blocks, threads = factors.shape[1], starts.shape[0] - 1, -(-columns // width), scratch.shape[0]
    for thread in range(start_block, stop_block):
        a, b, others_a, others_b = scratch[thread, 0], scratch[thread, 1], scratch[thread, 2], scratch[thread, 3]
        for item in range(thread, inputs * heads * blocks * chunks, threads):
            chunk, rest = item % chunks, item // chunks
            block, rest = rest % blocks, rest // blocks
            g, h = rest // heads, rest % heads
            source, slope, target = x[g, h], grad[g, h], grad_x[g, h]
            lo, hi = starts[chunk], starts[chunk + 1]
            start, w = _U(block * width), min(width, columns - block * width)
            for r in range(terms):
                scale = coefficients[h, r]
                for i in range(lo, hi):
                    _begin(a, _U(i - lo), source, _U(nodes[i]), start, w)
                    _begin(b, _U(i - lo), slope, _U(nodes[i]), start, w)
                for i in range(hi - 1, lo - 1, -1):
                    if above[i] >= 0:
                        p, factor = _U(above[i] - lo), factors[h, r, i]
                        _add_and_keep(a, others_a, p, _U(i - lo), factor, w)
                        _add_and_keep(b, others_b, p, _U(i - lo), factor, w)
                for i in range(lo, hi):
                    here, row = _U(i - lo), _U(nodes[i])
                    if above[i] >= 0:
                        p, factor = _U(above[i] - lo), factors[h, r, i]
                        _spread(a, others_a, p, here, factor, w)
                        _spread(b, others_b, p, here, factor, w)
                        logs[thread, h, r, i] += scale * _cross(a, b, others_a, others_b, here, w)
                    else:
                        _clear(others_a, here, w)
                        _clear(others_b, here, w)
                    total = _dot(slope, row, start, a, here, w) + _dot(slope, row, start, others_a, here, w)
                    scales[thread, h, r] += total
                    _write_both(b, others_b, here, target, row, start, w, scale, r > 0)


_forward_kernel, _forward_growing_kernel = (
    BlockKernel(_forward, fastmath=True),
    BlockKernel(_forward_growing, fastmath=True),
)
_backward_kernel, _backward_growing_kernel = (
    BlockKernel(_backward, fastmath=True),
    BlockKernel(_backward_growing, fastmath=True),
)


def _share(forest: RootedForest, x: Tensor, parts: int) -> tuple[np.ndarray, int, np.ndarray]:
    """Split the work among threads: where their trees begin, columns at a time, and memory for sums."""
    inputs, heads, size, columns = x.shape
    threads = torch.get_num_threads()
    pieces = max(1, inputs * heads)
    widest = min(_MAX_WIDTH, max(_MIN_WIDTH, _MAX_SCRATCH // (threads * parts * max(1, size))))
    # A number of blocks of columns that gives every thread the same amount of work.
    share = threads // math.gcd(threads, pieces)
    blocks = -(-max(1, columns) // (widest * share)) * share
    width = max(1, -(-columns // blocks))
    pieces *= -(-columns // width)
    starts = np.array([0, size])
    if pieces < threads:
        trees = tree_pointers(forest).numpy()
        shares = np.linspace(0, size, threads + 1)[1:-1]
        starts = np.unique(np.concatenate([starts, trees[np.searchsorted(trees, shares)]]))
    threads = max(1, min(threads, pieces * (len(starts) - 1)))
    # Allocated by NumPy, which requests huge pages.
    return starts, width, np.empty((threads, parts, int(np.diff(starts).max()), width))


def _factors(logs: Tensor) -> list[np.ndarray]:
    """Return the factors of edges, and 1 minus their squares: the share of a subtree that its parent's total lacks."""
    return arrays(logs.exp(), -torch.expm1(2 * logs))


def forest_sums(sums: Sums) -> Tensor:
    """Return sums of x [G, H, N, C] over all nodes of a tree, weighted by the edges between them."""
    forest, logs, coefficients, x, growing = sums
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    structure = arrays(forest.nodes, forest.above, forest.kinds)
    kernel = _forward_growing_kernel if growing else _forward_kernel
    starts, width, scratch = _share(forest, x, 2 if growing else 1)
    kernel(len(scratch), *structure, *_factors(logs), *arrays(coefficients, x, out), starts, width, scratch)
    return out


def forest_sums_backward(sums: Sums, grad: Tensor) -> dict[str, Tensor]:
    """Return the gradients of logarithms, coefficients and x."""
    forest, logs, coefficients, x, growing = sums
    grad_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    starts, width, scratch = _share(forest, x, 4 if growing else 2)
    grad_logs = np.zeros((len(scratch), *logs.shape))
    grad_coefficients = np.zeros((len(scratch), *coefficients.shape))
    kernel = _backward_growing_kernel if growing else _backward_kernel
    inputs = arrays(coefficients, x, grad, grad_x)
    structure = arrays(forest.nodes, forest.above)
    kernel(len(scratch), *structure, *_factors(logs), *inputs, grad_logs, grad_coefficients, starts, width, scratch)
    by_log, by_coefficient = (torch.from_numpy(parts.sum(0)) for parts in (grad_logs, grad_coefficients))
    return {"logs": by_log, "coefficients": by_coefficient, "x": grad_x}
