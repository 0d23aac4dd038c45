"""Rooted forests: an order of the nodes, the parent of each, and distances. A place is a position in the order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.derived import plainly
from topomask.ops.rooted_forest.kernels import Array, describe_kernel, diameters_kernel, root_kernel, run

# The most nodes of a cycle that an error lists.
_MAX_NAMED = 10


class RootedForest(NamedTuple):
    """A forest with its nodes in an order in which every subtree is contiguous and begins with its root."""

    nodes: Tensor  # [N], int32 if that fits
    above: Tensor  # [N], the place of the parent, -1 for roots
    depths: Tensor  # [N], edges to the root
    trees: Tensor  # [N], the tree of every place, ascending
    kinds: Tensor  # [N], int8: the sum of LEAF for places without children and of LAST for the last child of a place
    entries: Tensor  # [2, N], the two entries in compressed sparse rows of the edge to the parent; 0 for roots

    def to(self, device: torch.device) -> RootedForest:
        """The forest on another device."""
        return RootedForest(*(tensor.to(device) for tensor in self))

    def check(self) -> None:
        """Raise a ValueError unless every node has a place, and a parent that comes before it."""
        segments.check_once(_check_forest, self)


def _check_forest(nodes: Tensor, above: Tensor, depths: Tensor, trees: Tensor, kinds: Tensor, entries: Tensor) -> None:
    size = len(nodes)
    segments.check_permutation("nodes", nodes, size)
    for name, values in (("above", above), ("depths", depths), ("trees", trees), ("kinds", kinds)):
        segments.check_integers(name, values, small=name == "kinds")
    place = torch.arange(size, device=above.device)
    if len(above) != size or bool((above < -1).any()) or bool((above >= place).any()):
        raise ValueError("`above` must be -1 for roots, and otherwise an earlier place. Use root_forest.")
    found = [np.empty(size, kind) for kind in (np.int64, np.int64, np.int8)]
    run(describe_kernel, above.cpu().numpy().astype(np.int64), *found)
    for name, values, wanted in zip(("depths", "trees", "kinds"), (depths, trees, kinds), found, strict=True):
        if values.shape != (size,) or not np.array_equal(values.cpu().numpy(), wanted):
            raise ValueError(f"`{name}` do not match `above`. Use root_forest.")
    # If subtrees are contiguous, the parent is the last earlier place that is one edge closer to the root.
    depth = torch.from_numpy(found[0]).to(place.device)
    keys = (depth * size + place).sort().values
    parents = keys[torch.searchsorted(keys, (depth - 1) * size + place) - 1] - (depth - 1) * size
    is_child = above >= 0
    if not torch.equal(parents[is_child], above[is_child].long()) or entries.shape != (2, size):
        raise ValueError("`above` must keep every subtree contiguous, with its root first. Use root_forest.")


def root_forest(indptr: Array, indices: Array) -> RootedForest:
    """Root a forest given by compressed sparse rows that store every edge twice.

    Raises:
        ValueError: If there is a cycle; the error names its nodes.
    """
    size = len(indptr) - 1
    kind = np.int32 if len(indices) < 2**31 else np.int64
    nodes, above, depths, trees = np.empty((4, size), dtype=kind)
    entries, kinds = np.empty((2, size), dtype=kind), np.empty(size, dtype=np.int8)
    length = run(root_kernel, indptr, indices, nodes, above, entries)
    if length:
        raise ValueError(_name_cycle(nodes[:length].tolist()))
    run(describe_kernel, above, depths, trees, kinds)
    with plainly():
        forest = RootedForest(*(torch.from_numpy(array) for array in (nodes, above, depths, trees, kinds, entries)))
    segments.mark_checked(_check_forest, forest)
    return forest


def _name_cycle(cycle: list[int]) -> str:
    if len(cycle) == 1:
        return f"node {cycle[0]} has a self-loop"
    names = [str(node) for node in [*cycle, cycle[0]]]
    if len(cycle) > _MAX_NAMED:
        half = _MAX_NAMED // 2
        names = [*names[:half], "...", *names[-half:]]
    return f"its nodes {' - '.join(names)} form a cycle of {len(cycle)} edges"


def diameter(forest: RootedForest, lengths: Tensor) -> float:
    """Return the largest distance within a tree, for lengths [N] of the edges to parents."""
    values = lengths.detach().cpu().double().contiguous().numpy()
    return float(run(diameters_kernel, forest.above.cpu().numpy(), values, np.empty_like(values)))


def distances(forest: RootedForest, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return distances between all nodes, [N, N], and whether they are in one tree; differentiable in the lengths.

    The distance between two nodes is the sum of their depths minus twice that of their lowest common ancestor. In the
    order of the forest, that is the parent of the place of least depth after the first node and up to the second.

    Args:
        forest: The forest.
        lengths: Length of the edge to the parent of every place, [N].
    """
    nodes, above = forest.nodes.long(), forest.above.long()
    size = len(nodes)
    if not size:
        return lengths.new_zeros(0, 0), torch.zeros(0, 0, dtype=torch.bool, device=lengths.device)
    place = torch.arange(size, device=nodes.device)
    later = place[None, :] > place[:, None]
    highest = torch.where(later, forest.depths, size).cummin(dim=1).indices
    common = torch.where(later, above[highest], place[:, None])
    depth = depth_sums(above, lengths)
    found = depth[:, None] + depth[None, :] - 2 * depth[common.clamp(min=0)]
    found = torch.where(later & (common >= 0), found, 0.0)
    back = torch.empty_like(place).scatter(0, nodes, place)
    together = forest.trees[:, None] == forest.trees[None, :]
    return (found + found.mT)[back][:, back], together[back][:, back]


def depth_sums(above: Tensor, values: Tensor) -> Tensor:
    """Return sums of values [N] from every place up to its root, by pointer doubling; differentiable in the values."""
    above = torch.where(above < 0, len(above), above)
    above = torch.cat([above, above.new_tensor([len(above)])])
    sums = torch.cat([values, values.new_zeros(1)])
    # As many steps as the deepest possible tree needs: reading the depth would break a compiled graph, which this way
    # works for all sizes up to the next power of two.
    reach = 1
    while reach < values.shape[0]:
        sums, above, reach = sums + sums[above], above[above], 2 * reach
    return sums[:-1]


def tree_pointers(forest: RootedForest) -> Tensor:
    """Return where trees begin, [T + 1], on the CPU."""
    return segments.pointers(torch.bincount(forest.trees.cpu()))
