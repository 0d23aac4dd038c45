"""Certificates of pruned frontiers: how far a row may be off, per length."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

# Names in a state, where tensors are flat.
NAMES = ("bounds", "unreached")
# Relative error of a number that is rounded to float32.
_ROUNDING = 2.0**-24


class Certificate(NamedTuple):
    """Bounds on the errors of the loads of every row, see :meth:`~topomask.WalkFeatures.error_bound`.

    It belongs to tensors that were computed with it: features that users make of their own tensors have none.
    """

    bounds: Tensor  # [H, R, L + 1], float64, on the error of loads before they are rounded to float32
    unreached: Tensor  # [H, R], whether a row missed the tolerance

    def rows(self, nodes: Tensor) -> Certificate:
        """Select rows."""
        return Certificate(self.bounds[:, nodes], self.unreached[:, nodes])

    def split(self, ends: Sequence[int]) -> list[Certificate]:
        """Split the rows from ``ends[0]`` to ``ends[1]``, from there to ``ends[2]``, and so on."""
        return [Certificate(self.bounds[:, a:b].clone(), self.unreached[:, a:b].clone()) for a, b in pairwise(ends)]

    def to(self, device: torch.device) -> Certificate:
        """Move it to a device; bounds stay in float64."""
        return Certificate(self.bounds.to(device), self.unreached.to(device))

    def state(self) -> dict[str, Tensor]:
        """Return both as flat tensors."""
        return {"bounds": self.bounds.flatten().clone(), "unreached": self.unreached.flatten().to(torch.uint8)}

    def error(self, f: Tensor, load_norms: Tensor) -> Tensor:
        """Bound the error of rows with modulation ``f``, [H, L + 1] or [1, L + 1]; rounding included."""
        bounds = self.bounds + _ROUNDING * (self.bounds.shape[-1] + 2) * load_norms
        return (f.abs().to(torch.float64)[:, None] * bounds).sum(dim=-1)


def join(parts: Sequence[Certificate | None]) -> Certificate | None:
    """Join the certificates of graphs into that of their batch; None if no part has one."""
    found = [part for part in parts if part is not None]
    if not found:
        return None
    if len(found) < len(parts):
        raise ValueError("`features` mixes certified features with others. Make them alike.")
    bounds, unreached = zip(*found, strict=True)
    return Certificate(torch.cat(bounds, dim=1), torch.cat(unreached, dim=1))


def from_state(state: dict[str, Tensor], num_heads: int, num_rows: int, max_length: int) -> Certificate:
    """Restore a certificate from :meth:`Certificate.state`, or raise a ValueError."""
    bounds, unreached = (state[name] for name in NAMES)
    shape = (num_heads, num_rows, max_length + 1)
    if bounds.dtype != torch.float64 or bounds.numel() != num_heads * num_rows * (max_length + 1):
        raise ValueError(f"`bounds` must be {shape} numbers of float64, but is {tuple(bounds.shape)}, {bounds.dtype}.")
    # Neither negative nor NaN.
    if not bool(((bounds >= 0) & bounds.isfinite()).all()):
        raise ValueError("`bounds` must be finite and not negative.")
    if unreached.dtype != torch.uint8 or unreached.numel() != num_heads * num_rows or bool((unreached > 1).any()):
        raise ValueError(f"`unreached` must be {shape[:2]} flags of uint8 that are 0 or 1.")
    return Certificate(bounds.reshape(shape).clone(), unreached.reshape(shape[:2]).to(torch.bool))
