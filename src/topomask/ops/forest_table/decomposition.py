"""Recursive cuts of forests into two sides, from which sums over any function of distance are computed.

A tree is cut at a node such that each side has between a third and two thirds of the nodes. Every path from one side to
the other goes through that node, so its length is the sum of two distances to it: sums over the other side are
convolutions over distances. Then both sides are cut in turn. No pair of nodes occurs twice, so nothing is subtracted.

The node at the cut belongs to one side. If the other side needs it to stay connected, it gets a joint there, which has
no value. Joints that connect fewer than three parts are removed, so a part never has more joints than nodes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.backend import compiled
from topomask.ops.derived import plainly

# The cost of a step of a transform, relative to a direct product of two distances.
_DIRECT = 24.0
_BROKEN = "The cuts are inconsistent: {}. Make them with decompose(indptr, indices)."


class Decomposition(NamedTuple):
    """Cuts of a forest, level by level. Places are positions in an order of the nodes in which parts are contiguous.

    A slot is one distance to the cut on one side of one part. Sides 2k and 2k + 1 belong to cut k.
    """

    nodes: Tensor  # [N], the node at every place
    slots: Tensor  # [levels, N], int32: the slot of every place, -1 if its part is a single node
    level_ptr: Tensor  # [levels + 1], where the sides of every level begin
    slot_ptr: Tensor  # [sides + 1], where the slots of every side begin; they start from 0 in every level
    distances: Tensor  # [slots of all levels], ascending in every side
    is_long: Tensor  # [sides], whether to use transforms
    runs: Tensor  # [sides / 2, 3], first place and end of the places of every cut, and its level
    depth_first: Tensor  # [sides / 2], an order of the cuts in which those within a part are consecutive

    def to(self, device: torch.device) -> Decomposition:
        """The cuts on another device."""
        return Decomposition(*(tensor.to(device) for tensor in self))

    def check(self) -> None:
        """Raise a ValueError unless all places, slots and cuts are in range."""
        segments.check_once(_check_cuts, self)


def _check_cuts(
    nodes: Tensor,
    slots: Tensor,
    level_ptr: Tensor,
    slot_ptr: Tensor,
    distances: Tensor,
    is_long: Tensor,
    runs: Tensor,
    depth_first: Tensor,
) -> None:
    size, num_cuts, num_levels = len(nodes), len(runs), len(slots)
    segments.check_permutation("nodes", nodes, size)
    segments.check_permutation("depth_first", depth_first, num_cuts)
    segments.check_pointers("level_ptr", level_ptr, 2 * num_cuts, num_levels)
    segments.check_pointers("slot_ptr", slot_ptr, len(distances), 2 * num_cuts)
    segments.check_integers("distances", distances)
    fits = slots.shape == (num_levels, size) and runs.shape == (num_cuts, 3) and is_long.shape == (2 * num_cuts,)
    if not fits or is_long.dtype != torch.bool or not torch.equal(is_long[::2], is_long[1::2]):
        raise ValueError(_BROKEN.format("shapes do not match"))
    if bool((distances < 0).any()) or segments.first_repeat(distances, slot_ptr) is not None:
        raise ValueError(_BROKEN.format("distances must increase on every side"))
    begin, end, level = runs.unbind(dim=1)
    if bool(((begin < 0) | (begin > end) | (end > size) | (level < 0) | (level >= num_levels)).any()):
        raise ValueError(_BROKEN.format("a cut is out of range"))
    # Slots start from 0 in every level, and those of a place belong to the cut that it is in.
    place, cut = segments.ranges(begin, end - begin), torch.repeat_interleave(end - begin)
    found, base = slots[level[cut], place], slot_ptr[level_ptr[level]][cut]
    first, last = slot_ptr[2 * cut] - base, slot_ptr[2 * cut + 2] - base
    if bool(((found < first) | (found >= last) | (last - first > size)).any()):
        raise ValueError(_BROKEN.format("a place has the slot of another cut"))


def decompose(indptr: np.ndarray, indices: np.ndarray, lengths: np.ndarray | None = None) -> Decomposition:
    """Cut a forest, given by compressed sparse rows that store every edge twice, until all parts are single nodes.

    Args:
        indptr: [N + 1].
        indices: [2 E].
        lengths: Integer lengths of the entries, at least 0, [2 E]. Default: 1.
    """
    size = len(indptr) - 1
    if lengths is None:
        lengths = np.ones(len(indices), np.int64)
    part = _make_part(size)
    # Numba is only imported where it is needed.
    from topomask.ops.forest_table import cuts

    is_compiled = cuts.IS_COMPILED and compiled(torch.empty(0, device="cpu"))
    root, cut = (kernel if is_compiled else kernel.function for kernel in (cuts.root_kernel, cuts.cut_kernel))
    count = root(indptr.astype(np.int64), indices.astype(np.int64), lengths.astype(np.int64), *part)
    places, starts = np.empty(size, np.int64), part.ptr[:count].copy()
    slots, distances, runs = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    pointers, level_ptr = [np.zeros(1, np.int64)], [0]
    while count:
        following, new_starts = _make_part(size), np.empty(size, np.int64)
        slot, found = np.full(size, -1, np.int32), np.empty(size, np.int64)
        slot_ptr, spans = np.empty(2 * count + 1, np.int64), np.empty((count, 3), np.int64)
        sides, count = cut(*part, count, starts, places, *following, new_starts, slot, found, slot_ptr, spans)
        part, starts = following, new_starts
        if sides:
            total = slot_ptr[sides]
            slots.append(slot)
            distances.append(found[:total].copy())
            pointers.append(slot_ptr[1 : sides + 1] + pointers[-1][-1])
            spans[:, 2] = len(runs)
            runs.append(spans[: sides // 2])
            level_ptr.append(level_ptr[-1] + sides)
    return _finish(places, slots, np.concatenate(pointers), distances, level_ptr, runs)


class _Part(NamedTuple):
    """Trees one after the other, parents before children."""

    node: np.ndarray  # the node, or -1 - node for a joint
    parent: np.ndarray  # index of the parent in the same tree, -1 for its root
    length: np.ndarray  # of the edge to the parent
    ptr: np.ndarray  # where trees begin


def _make_part(size: int) -> _Part:
    """Allocate memory for trees with ``size`` nodes and as many joints."""
    node, parent, length = (np.empty(2 * size, np.int64) for _ in range(3))
    return _Part(node, parent, length, np.empty(size + 1, np.int64))


def _finish(
    places: np.ndarray,
    slots: list[np.ndarray],
    slot_ptr: np.ndarray,
    distances: list[np.ndarray],
    level_ptr: list[int],
    runs: list[np.ndarray],
) -> Decomposition:
    with plainly():
        nodes = torch.from_numpy(places)
        by_place = [torch.from_numpy(slot)[nodes] for slot in slots]
        found = np.concatenate([*distances, np.zeros(0, np.int64)])
        sides = np.diff(slot_ptr).reshape(-1, 2)
        last = (found[slot_ptr[1:] - 1] if len(sides) else np.zeros(0, np.int64)).reshape(-1, 2).sum(axis=1)
        work = _DIRECT * 2.0 * (last + 1.0) * np.log2(last + 2.0)
        spans = np.concatenate([*runs, np.zeros((0, 3), np.int64)])
        is_long = np.repeat(2.0 * sides.prod(axis=1) > work, 2)
        return Decomposition(
            nodes,
            torch.stack(by_place) if slots else torch.empty(0, len(nodes), dtype=torch.int32),
            torch.tensor(level_ptr),
            torch.from_numpy(slot_ptr),
            torch.from_numpy(found).to(segments.index_type(int(found.max(initial=0)) + 1)),
            torch.from_numpy(is_long),
            torch.from_numpy(spans),
            torch.from_numpy(np.lexsort((spans[:, 2], spans[:, 0]))),
        )
