"""Sums of a function of distances over the cuts of a forest, compiled; long cuts use torch's Fourier transforms.

A task processes all cuts for some columns, depth first. Places are ordered so that every part is contiguous, so parts
stay in the cache while they get smaller and smaller.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from topomask.ops.backend import EXACT, BlockKernel, arrays
from topomask.ops.forest_table import reference
from topomask.ops.forest_table.decomposition import Decomposition

_COLUMNS = 64


@njit(**EXACT)
def _gather(slots, begin, end, base, x, sums):
    """Sum by slot over the places of a cut."""
    if x.shape[1] == _COLUMNS:
        # With a number of columns that the compiler knows, the loop becomes vector instructions.
        for place in range(begin, end):
            k = np.uint64(slots[place] - base)
            for c in range(_COLUMNS):
                sums[k, c] += x[place, c]
        return
    for place in range(begin, end):
        k = np.uint64(slots[place] - base)
        for c in range(x.shape[1]):
            sums[k, c] += x[place, c]


@njit(**EXACT)
def _spread(slots, begin, end, base, mixed, total):
    """Add the result of its slot to every place of a cut."""
    if total.shape[1] == _COLUMNS:
        for place in range(begin, end):
            k = np.uint64(slots[place] - base)
            for c in range(_COLUMNS):
                total[place, c] += mixed[k, c]
        return
    for place in range(begin, end):
        k = np.uint64(slots[place] - base)
        for c in range(total.shape[1]):
            total[place, c] += mixed[k, c]


@njit(**EXACT | {"fastmath": {"reassoc", "contract", "nsz"}})
def _correlate(f, distances, first, middle, end, sums, mixed):
    """Compute the contributions of both sides of a cut to each other, by distance."""
    for i in range(middle):
        d = distances[first + i]
        for j in range(middle, end):
            weight = f[d + distances[first + j]]
            if sums.shape[1] == _COLUMNS:
                for c in range(_COLUMNS):
                    mixed[i, c] += weight * sums[j, c]
                for c in range(_COLUMNS):
                    mixed[j, c] += weight * sums[i, c]
            else:
                for c in range(sums.shape[1]):
                    mixed[i, c] += weight * sums[j, c]
                    mixed[j, c] += weight * sums[i, c]


@njit(**EXACT)
def _task(number, shape, step):
    """Return the input, head and first column of a task."""
    num_blocks = (shape[3] + step - 1) // step
    return number // (shape[1] * num_blocks), number // num_blocks % shape[1], number % num_blocks * step


def _sum_columns(
    start_block, stop_block, nodes, slots, level_ptr, slot_ptr, distances, is_long, runs, depth_first, f, x, out, step
):
    size = len(nodes)
    for number in range(start_block, stop_block):
        b, h, column = _task(number, x.shape, step)
        width = min(step, x.shape[3] - column)
        moved, total = np.zeros((size, step), x.dtype), np.empty((size, step), x.dtype)
        sums, mixed = np.zeros((size, step), x.dtype), np.zeros((size, step), x.dtype)
        table = f[h]
        for place in range(size):
            for c in range(width):
                moved[place, c] = x[b, h, nodes[place], column + c]
            for c in range(step):
                total[place, c] = table[0] * moved[place, c]
        for cut in depth_first:
            if not is_long[2 * cut]:
                begin, end, level = runs[cut]
                first, count = slot_ptr[2 * cut], slot_ptr[2 * cut + 2] - slot_ptr[2 * cut]
                base = first - slot_ptr[level_ptr[level]]
                _gather(slots[level], begin, end, base, moved, sums)
                _correlate(table, distances, first, slot_ptr[2 * cut + 1] - first, count, sums, mixed)
                _spread(slots[level], begin, end, base, mixed, total)
                sums[:count] = 0.0
                mixed[:count] = 0.0
        for place in range(size):
            for c in range(width):
                out[b, h, nodes[place], column + c] = total[place, c]


def _sum_gradients(
    start_block,
    stop_block,
    nodes,
    slots,
    level_ptr,
    slot_ptr,
    distances,
    is_long,
    runs,
    depth_first,
    x,
    grad,
    out,
    step,
):
    """Compute the gradient of f of every task, ``out`` [tasks, D]."""
    size = len(nodes)
    for number in range(start_block, stop_block):
        b, h, column = _task(number, x.shape, step)
        width = min(step, x.shape[3] - column)
        moved, grads = np.zeros((size, step), x.dtype), np.zeros((size, step), x.dtype)
        sums, grad_sums = np.zeros((size, step), x.dtype), np.zeros((size, step), x.dtype)
        for place in range(size):
            for c in range(width):
                moved[place, c] = x[b, h, nodes[place], column + c]
                grads[place, c] = grad[b, h, nodes[place], column + c]
                out[number, 0] += np.float64(moved[place, c]) * grads[place, c]
        for cut in depth_first:
            if not is_long[2 * cut]:
                begin, end, level = runs[cut]
                first, count = slot_ptr[2 * cut], slot_ptr[2 * cut + 2] - slot_ptr[2 * cut]
                base = first - slot_ptr[level_ptr[level]]
                _gather(slots[level], begin, end, base, moved, sums)
                _gather(slots[level], begin, end, base, grads, grad_sums)
                middle = slot_ptr[2 * cut + 1] - first
                for i in range(middle):
                    for j in range(middle, count):
                        product = 0.0
                        for c in range(step):
                            product += sums[i, c] * grad_sums[j, c] + sums[j, c] * grad_sums[i, c]
                        out[number, distances[first + i] + distances[first + j]] += product
                sums[:count] = 0.0
                grad_sums[:count] = 0.0


_sum_kernel = BlockKernel(_sum_columns, allocates=True)
_gradient_kernel = BlockKernel(_sum_gradients, fastmath=True, allocates=True)


def _cut_arrays(cuts: Decomposition) -> list[np.ndarray]:
    return arrays(*cuts)


def _tasks(x: Tensor) -> tuple[int, int]:
    """Return the number of columns of a task, and of tasks for one input and head."""
    step = max(1, min(_COLUMNS, x.shape[-1]))
    return step, -(-x.shape[-1] // step)


def forest_table(cuts: Decomposition, f: Tensor, x: Tensor) -> Tensor:
    """Return sums of f(distance) x over the nodes of every tree, [G, H, N, C]."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    step, num_tasks = _tasks(x)
    _sum_kernel(x.shape[0] * x.shape[1] * num_tasks, *_cut_arrays(cuts), *arrays(f, x, out), step)
    if bool(cuts.is_long.any()):
        moved = reference.by_place(cuts, x)
        far = torch.zeros_like(moved)
        reference.add_groups(far, cuts, f, moved, only_long=True)
        out += reference.by_node(cuts, far, x)
    return out


def forest_table_backward(cuts: Decomposition, f: Tensor, x: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of f."""
    step, num_tasks = _tasks(x)
    parts = torch.zeros(x.shape[0], x.shape[1], num_tasks, f.shape[1], dtype=torch.float64)
    by_task = parts.flatten(0, 2)
    _gradient_kernel(len(by_task), *_cut_arrays(cuts), *arrays(x, grad, by_task), step)
    out = parts.sum(dim=(0, 2)).to(f.dtype)
    if bool(cuts.is_long.any()):
        moved, grads = reference.by_place(cuts, x), reference.by_place(cuts, grad)
        reference.add_group_gradients(out, cuts, moved, grads, only_long=True)
    return out
