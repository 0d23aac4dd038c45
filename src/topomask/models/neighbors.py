"""Neighbour layers of point clouds, and how they find neighbours."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor, nn

from topomask.graph import Graph
from topomask.graph.builders import nearest_others
from topomask.graph.input import Array, check_counts
from topomask.masks import WalkMask
from topomask.nn import MaskedAttention, MessagePassing
from topomask.nn.message_passing import AnchorLists

# Maximum number of walks per particle by default.
_MAX_DEFAULT_WALKS = 1000


class NeighborLayer(nn.Module, ABC):
    """A layer that updates particles from their neighbours.

    Layers with the same settings share the neighbours, which :meth:`find` and :meth:`prepare` compute once.
    """

    @abstractmethod
    def find(self, positions: Tensor, padding: Tensor | None) -> Any:
        """Find the neighbours of all particles, without gradients.

        Args:
            positions: Positions of the particles, [B, N, axes].
            padding: [B, N], True for padding.
        """

    def prepare(self, found: Any) -> Any:
        """Compute everything that does not depend on tokens from the result of :meth:`find`."""
        return found

    @abstractmethod
    def forward(self, x: Tensor, positions: Tensor, around: Any) -> Tensor:
        """Compute updates of tokens [B, N, C], given the result of :meth:`prepare`."""


class _SettledLayer(NeighborLayer):
    """A layer whose settings are saved in checkpoints, and checked on loading.

    Attributes:
        settings: Names of the attributes that must be the same in a checkpoint and in the layer.
        optional_state: Keys that older checkpoints, without settings, may lack.
    """

    settings: ClassVar[tuple[str, ...]]
    optional_state = ("_extra_state",)

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(_take_own_settings)

    def get_extra_state(self) -> Tensor:
        """Return the settings as a tensor."""
        return torch.tensor([getattr(self, name) for name in self.settings], dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Raise a ValueError unless the settings of a checkpoint are those of this layer."""
        for name, saved in zip(self.settings, state.tolist(), strict=True):
            if (own := getattr(self, name)) != saved:
                raise ValueError(
                    f"The checkpoint has {name}={saved:g}, but the model has {name}={own:g}. Build the model with "
                    f"{name}={saved:g}."
                )


def _take_own_settings(layer: _SettledLayer, stored: dict[str, Any], prefix: str, *_: Any) -> None:
    stored.setdefault(f"{prefix}_extra_state", layer.get_extra_state())


class Walks(NamedTuple):
    """A graph and the walks on it."""

    graph: Graph
    walks: Any


class WalkNeighbors(_SettledLayer):
    r"""Linear attention with one head, masked by a learnable function of walks between particles.

    .. math:: M = \sum_{l=0}^{L} f_l\,(D^{-1} A)^l

    where A is the directed graph of the k nearest neighbours, which is built in every call. The :math:`k^L` repelling
    walkers of a particle take each walk of length L once, so M is exact up to rounding. In a cloud of at most k
    particles, all others are neighbours; there, and with fewer walks, M is an estimate.

    Args:
        dim: Width of the tokens.
        num_neighbors: Number of neighbours k of each particle.
        num_hops: Length of the walks L.
        num_walks: Number of walks per particle. Default: :math:`k^L`, if that is at most 1,000.
        seed: Seed of the walks.

    References:
        Reid et al. (2025), App. C.3 and Alg. 2.
    """

    # The mask checks the length of the walks.
    settings = ("num_neighbors",)

    def __init__(
        self, dim: int, num_neighbors: int = 3, num_hops: int = 3, num_walks: int | None = None, seed: int = 0
    ) -> None:
        super().__init__()
        check_counts(num_neighbors=num_neighbors, num_hops=num_hops)
        self.num_neighbors = num_neighbors
        if num_walks is None:
            num_walks = num_neighbors**num_hops
            if num_walks > _MAX_DEFAULT_WALKS:
                raise ValueError(
                    f"`num_walks` is None, which means num_neighbors**num_hops = {num_neighbors}**{num_hops} = "
                    f"{num_walks:,} walks per particle, more than {_MAX_DEFAULT_WALKS:,}. Set num_walks; with fewer "
                    "walks, the mask is an estimate."
                )
        mask = WalkMask(None, num_walks=num_walks, max_length=num_hops, normalization="row", symmetric=False, seed=seed)
        self.attention = MaskedAttention(dim, 1, mask)

    def find(self, positions: Tensor, padding: Tensor | None) -> Graph:
        """Build the directed graph of nearest neighbours, block-diagonal over clouds; padding is isolated."""
        size, k = positions.shape[1], self.num_neighbors
        return Graph.batch([_neighbor_graph(*cloud, size, k) for cloud in _clouds(positions, padding)])

    def prepare(self, found: Graph) -> Walks:
        """Sample walks on the graph."""
        assert isinstance(self.attention.mask, WalkMask)
        return Walks(found, self.attention.mask.sample(found))

    # Each call has a new graph, made of arrays that the compiler cannot trace.
    @torch.compiler.disable
    def forward(self, x: Tensor, positions: Tensor, around: Walks) -> Tensor:  # noqa: ARG002
        """Attend."""
        return self.attention(x.flatten(0, 1), graph=around.graph, walks=around.walks).view_as(x)


class AnchorNeighbors(_SettledLayer):
    """Message passing: some particles, the anchors, receive from their neighbours, all others from the nearest anchor.

    Args:
        dim: Width of the tokens.
        num_neighbors: Number of neighbours of an anchor. Each cloud must have more particles.
        anchor_fraction: Fraction of the particles that are anchors.
        seed: Seed of the choice of anchors, which is the same in every call.
        num_axes: Number of spatial dimensions.
    """

    settings = ("num_neighbors", "anchor_fraction")

    def __init__(
        self, dim: int, num_neighbors: int = 16, anchor_fraction: float = 0.25, seed: int = 0, num_axes: int = 3
    ) -> None:
        super().__init__()
        check_counts(num_neighbors=num_neighbors)
        if not 0 < anchor_fraction <= 1:
            raise ValueError(f"`anchor_fraction` must lie in (0, 1], but is {anchor_fraction}.")
        self.num_neighbors, self.anchor_fraction, self.seed = num_neighbors, anchor_fraction, seed
        self.messages = MessagePassing(dim, num_axes=num_axes)

    def find(self, positions: Tensor, padding: Tensor | None) -> AnchorLists:
        """Find anchors, their neighbours, and the nearest anchor of each particle, for all clouds."""
        size, num_anchors = positions.shape[1], 0
        anchors, neighbors, nearest = [], [], np.zeros(positions.shape[0] * size, dtype=np.int64)
        for number, (points, places) in enumerate(_clouds(positions, padding)):
            if len(points) <= self.num_neighbors:
                raise ValueError(
                    f"`num_neighbors` must be less than the number of particles of each cloud, but is "
                    f"{self.num_neighbors}, and cloud {number} has {len(points)} particles. Build the model with "
                    "fewer neighbours, or remove the cloud."
                )
            places = places + number * size
            order = np.random.default_rng(self.seed).permutation(len(points))
            chosen = np.sort(order[: max(1, round(self.anchor_fraction * len(points)))])
            anchors.append(places[chosen])
            neighbors.append(places[nearest_others(points, self.num_neighbors, of=chosen)])
            found = cKDTree(points[chosen]).query(points, workers=torch.get_num_threads())[1]
            nearest[places] = num_anchors + found
            num_anchors += len(chosen)
        parts = (np.concatenate(anchors), np.concatenate(neighbors), nearest)
        return AnchorLists(*(torch.from_numpy(part).to(positions.device) for part in parts))

    def forward(self, x: Tensor, positions: Tensor, around: AnchorLists) -> Tensor:
        """Pass messages."""
        return self.messages(x.flatten(0, 1), positions.flatten(0, 1), around).view_as(x)


def _clouds(positions: Tensor, padding: Tensor | None) -> list[tuple[Array, Array]]:
    """The points of each cloud, [P, axes], and their indices among the places of the cloud, padding included, [P]."""
    arrays = positions.detach().cpu().double().numpy()
    kept = np.ones(arrays.shape[:2], dtype=bool) if padding is None else (~padding).cpu().numpy()
    wrong = np.argwhere(kept & ~np.isfinite(arrays).all(axis=2))
    if len(wrong):
        cloud, particle = wrong[0]
        raise ValueError(
            f"`positions` must be finite, but particle {particle} of cloud {cloud} is at {arrays[cloud, particle]}. "
            "Remove it, or mark it as padding."
        )
    places = [np.flatnonzero(row) for row in kept]
    return [(points[own], own) for points, own in zip(arrays, places, strict=True)]


def _neighbor_graph(points: Array, places: Array, size: int, num_neighbors: int) -> Graph:
    num_neighbors = min(num_neighbors, len(points) - 1)
    if num_neighbors < 1:
        return Graph.from_edges(np.zeros((2, 0), dtype=np.int64), size, directed=True)
    # In the order of a graph's edges, so that they need not be sorted.
    target = np.sort(places[nearest_others(points, num_neighbors)], axis=1)
    return Graph.from_edges(np.stack([np.repeat(places, num_neighbors), target.ravel()]), size, directed=True)
