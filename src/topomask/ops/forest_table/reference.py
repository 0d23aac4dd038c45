"""Sums of a function of distances over the cuts of a forest; pure torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from topomask.ops.forest_table.decomposition import Decomposition

# The most numbers in memory at a time, so that they stay in the cache.
_ELEMENTS_PER_CHUNK = 1 << 19


class Group(NamedTuple):
    """Cuts of one level with transforms of the same size, which are computed together."""

    places: Tensor  # [P], places of nodes on any side
    cells: Tensor  # [P], 2 * size * cut + size * side + distance: where their sums are stored
    partners: Tensor  # [P], the same distance on the other side
    num_cuts: int
    size: int  # of a transform, larger than the sum of any two distances


def groups(cuts: Decomposition, only_long: bool) -> Iterator[Group]:
    """Yield the cuts of every level, grouped by the size of their transforms."""
    lengths = cuts.slot_ptr.diff()
    for level in range(len(cuts.level_ptr) - 1):
        begin, end = int(cuts.level_ptr[level]), int(cuts.level_ptr[level + 1])
        first = int(cuts.slot_ptr[begin])
        distances = cuts.distances[first : int(cuts.slot_ptr[end])].long()
        side_of_slot = torch.repeat_interleave(torch.arange(end - begin, device=lengths.device), lengths[begin:end])
        largest = cuts.distances[cuts.slot_ptr[begin + 1 : end + 1] - 1].long().view(-1, 2).sum(dim=1)
        # A power of two that is larger than the sum of the largest distances of both sides.
        exponents = torch.frexp(largest.double() + 1.0).exponent - (_is_power_of_two(largest + 1)).int()
        chosen = cuts.is_long[begin:end:2] if only_long else torch.ones_like(exponents, dtype=torch.bool)
        slots = cuts.slots[level].long()
        active = slots >= 0
        for exponent in torch.unique(exponents[chosen]).tolist():
            members = chosen & (exponents == exponent)
            rank = members.long().cumsum(0) - 1
            places = (active & members[side_of_slot[slots.clamp(min=0)] // 2]).nonzero()[:, 0]
            slot = slots[places]
            side, size = side_of_slot[slot], 1 << int(exponent)
            base = 2 * size * rank[side // 2] + distances[slot]
            yield Group(places, base + size * (side % 2), base + size * (1 - side % 2), int(members.sum()), size)


def _is_power_of_two(x: Tensor) -> Tensor:
    return (x & (x - 1)) == 0


def _columns(group: Group, x: Tensor) -> Iterator[slice]:
    step = max(1, _ELEMENTS_PER_CHUNK // max(1, 2 * group.num_cuts * group.size * x.shape[1]))
    for start in range(0, x.shape[2], step):
        yield slice(start, start + step)


def _spectra(group: Group, x: Tensor) -> Tensor:
    """Return spectra of sums by distance on both sides of every cut, [H, C, cuts, 2, frequencies], for x [N, H, C]."""
    chosen = x[group.places].flatten(1)
    sums = x.new_zeros(2 * group.num_cuts * group.size, chosen.shape[1])
    sums.scatter_add_(0, group.cells[:, None].expand_as(chosen), chosen)
    return torch.fft.rfft(sums.mT.contiguous().view(*x.shape[1:], group.num_cuts, 2, group.size))


def _spectrum(f: Tensor, size: int) -> Tensor:
    return torch.fft.rfft(f[:, :size], n=size)[:, None, None, None]


def add_groups(out: Tensor, cuts: Decomposition, f: Tensor, x: Tensor, only_long: bool) -> None:
    """Add contributions across cuts to ``out``; x and out [N, H, C] are in the order of places."""
    for group in groups(cuts, only_long):
        transformed = _spectrum(f, group.size)
        for part in _columns(group, x):
            # A sum over d2 of s[d2] f[d1 + d2] is a correlation.
            mixed = torch.fft.irfft(_spectra(group, x[..., part]).conj_physical_().mul_(transformed), n=group.size)
            found = mixed.flatten(2).flatten(0, 1).mT.contiguous()[group.partners]
            out[group.places, :, part] += found.unflatten(1, (x.shape[1], -1))


def add_group_gradients(out: Tensor, cuts: Decomposition, x: Tensor, grad: Tensor, only_long: bool) -> None:
    """Add the gradient of f to ``out`` [H, D]: products over a cut, by the sum of their distances."""
    for group in groups(cuts, only_long):
        for part in _columns(group, x):
            first, second = _spectra(group, x[..., part]), _spectra(group, grad[..., part])
            found = torch.fft.irfft((first * second.flip(3)).sum(dim=(1, 2, 3)), n=group.size)
            count = min(group.size, out.shape[1])
            out[:, :count] += found[:, :count]


def forest_table(cuts: Decomposition, f: Tensor, x: Tensor) -> Tensor:
    """Return sums of f(distance) x over the nodes of every tree, [G, H, N, C]."""
    moved = by_place(cuts, x)
    out = f[:, :1] * moved
    add_groups(out, cuts, f, moved, only_long=False)
    return by_node(cuts, out, x)


def forest_table_backward(cuts: Decomposition, f: Tensor, x: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of f."""
    moved, grads = by_place(cuts, x), by_place(cuts, grad)
    out = torch.zeros_like(f)
    out[:, 0] = (moved * grads).sum(dim=(0, 2))
    add_group_gradients(out, cuts, moved, grads, only_long=False)
    return out


def by_place(cuts: Decomposition, x: Tensor) -> Tensor:
    """Rearrange [G, H, N, C] into the order of places, [N, H, G * C]."""
    return x.permute(2, 1, 0, 3).flatten(2)[cuts.nodes]


def by_node(cuts: Decomposition, out: Tensor, x: Tensor) -> Tensor:
    """Rearrange the order of places, [N, H, G * C], back into the shape of x, [G, H, N, C]."""
    back = torch.empty_like(out)
    back[cuts.nodes] = out
    return back.unflatten(2, (x.shape[0], x.shape[3])).permute(2, 1, 0, 3)
