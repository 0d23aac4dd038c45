"""Certificates of pruned frontiers: how far a row may be off, per length."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.derived import plainly
from topomask.walks.features import CERTIFICATE_NAMES, WalkFeatures

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

    @classmethod
    def join(cls, parts: Sequence[Certificate]) -> Certificate:
        """Join the certificates of graphs into that of their batch."""
        bounds, unreached = zip(*parts, strict=True)
        return cls(torch.cat(bounds, dim=1), torch.cat(unreached, dim=1))

    def split(self, ends: Sequence[int]) -> list[Certificate]:
        """Split the rows from ``ends[0]`` to ``ends[1]``, from there to ``ends[2]``, and so on."""
        return [Certificate(self.bounds[:, a:b].clone(), self.unreached[:, a:b].clone()) for a, b in pairwise(ends)]

    def to(self, device: torch.device) -> Certificate:
        """Move it to a device; bounds stay in float64."""
        return Certificate(self.bounds.to(device), self.unreached.to(device))

    def state(self) -> dict[str, Tensor]:
        """Return both as flat tensors, by the names that the state of features has for them."""
        return {"bounds": self.bounds.flatten().clone(), "unreached": self.unreached.flatten().to(torch.uint8)}

    def error(self, f: Tensor, features: WalkFeatures) -> Tensor:
        """Bound the error of the rows of features with modulation ``f``, [H, L + 1] or [1, L + 1], with rounding."""
        bounds = self.bounds + _ROUNDING * (features.max_length + 3) * _load_norms(features)
        return (f.abs().to(torch.float64)[:, None] * bounds).sum(dim=-1)


def product_error(features: WalkFeatures, f: Tensor, graph_index: Tensor) -> Tensor:
    r"""Bound the error of the entries of :math:`\Phi \Phi^\top`, the largest of every row, [H, N].

    .. math:: e_i \max_j \lVert \Phi_j \rVert + (\lVert \Phi_i \rVert + e_i) \max_j e_j

    over the nodes j of the graph of i, in the 2-norm, which no bound :math:`e` on a norm of an error is below.

    Args:
        features: Certified features of all nodes.
        f: Modulation, [H, L + 1].
        graph_index: The graph of every node, [N].
    """
    error = features.error_bound(f)
    values = torch.atleast_2d(features.values(f)).to(torch.float64)
    row = segments.index(features._tensors.row_ptr)
    size = values.new_zeros(len(values), features.num_rows).index_add(1, row, values.square()).sqrt()

    def largest(x: Tensor) -> Tensor:
        place = graph_index.expand_as(x)
        found = x.new_zeros(len(x), int(graph_index.max()) + 1 if len(graph_index) else 0)
        return found.scatter_reduce(1, place, x, "amax").gather(1, place)

    return error * largest(size) + (size + error) * largest(error)


def _load_norms(features: WalkFeatures) -> Tensor:
    """Norm of the loads of every row and length, [H, R, L + 1]."""
    row_ptr, _, entry_ptr, lengths, loads = features._tensors
    with plainly():
        row = segments.index(row_ptr)[segments.index(entry_ptr)]
        place, sizes = row * (features.max_length + 1) + lengths, loads.to(torch.float64).abs()
        euclidean = features.normalization == "sym"
        sums = sizes.new_zeros((len(row_ptr) - 1) * (features.max_length + 1))
        sums.index_add_(0, place, sizes.square() if euclidean else sizes)
        norms = sums.sqrt() if euclidean else sums
        return norms.view(features.num_heads, features.num_rows, features.max_length + 1)


def from_state(state: dict[str, Tensor], num_heads: int, num_rows: int, max_length: int) -> Certificate:
    """Restore a certificate from :meth:`Certificate.state`, or raise a ValueError."""
    bounds, unreached = (state[name] for name in CERTIFICATE_NAMES)
    shape = (num_heads, num_rows, max_length + 1)
    if bounds.dtype != torch.float64 or bounds.numel() != num_heads * num_rows * (max_length + 1):
        raise ValueError(f"`bounds` must be {shape} numbers of float64, but is {tuple(bounds.shape)}, {bounds.dtype}.")
    # Neither negative nor NaN.
    if not bool(((bounds >= 0) & bounds.isfinite()).all()):
        raise ValueError("`bounds` must be finite and not negative.")
    if unreached.dtype != torch.uint8 or unreached.numel() != num_heads * num_rows or bool((unreached > 1).any()):
        raise ValueError(f"`unreached` must be {shape[:2]} flags of uint8 that are 0 or 1.")
    return Certificate(bounds.reshape(shape).clone(), unreached.reshape(shape[:2]).to(torch.bool))
