"""Layers in which particles look at their neighbours, and how these are found."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor, nn

from topomask.builders import nearest_others
from topomask.graph import Graph
from topomask.graph_input import Array
from topomask.masks import WalkMask
from topomask.nn import MaskedAttention, MessagePassing
from topomask.nn.message_passing import AnchorLists


class NeighborLayer(nn.Module, ABC):
    """A layer in which particles look at their neighbours.

    Layers of the same kind and settings share what they know about where particles are: it is computed once, by
    :meth:`find` and :meth:`prepare`.
    """

    @abstractmethod
    def find(self, positions: Tensor, padding: Tensor | None) -> Any:
        """Who is near whom; does not look at gradients.

        Args:
            positions: Where particles are, [B, N, axes].
            padding: [B, N], True where there is no particle.
        """

    def prepare(self, found: Any) -> Any:
        """What can be computed of it before tokens are looked at."""
        return found

    @abstractmethod
    def forward(self, x: Tensor, positions: Tensor, around: Any) -> Tensor:
        """Updates of tokens [B, N, C], given what :meth:`prepare` gave."""


class Walks(NamedTuple):
    """Walks of all particles."""

    graph: Graph
    features: Any


class WalkNeighbors(NeighborLayer):
    r"""Linear attention with one head, masked by a learnable function of the walks from particle to particle.

    .. math:: M = \sum_{l=0}^{L} f_l\,(D^{-1} A)^l

    where A lists the k nearest particles of every particle, a directed graph that is built anew in every call. All
    :math:`k^L` repelling walkers of a particle together take every walk of length L once, so M is exact to rounding.

    Args:
        dim: Width of the tokens.
        num_neighbors: Neighbours k of every particle.
        num_hops: Length of the walks L.
        num_walks: Walks per particle. Default: :math:`k^L`.
        seed: Seed of the walks.

    References:
        Reid et al. (2025), App. C.3 and Alg. 2.
    """

    def __init__(
        self, dim: int, num_neighbors: int = 3, num_hops: int = 3, num_walks: int | None = None, seed: int = 0
    ) -> None:
        super().__init__()
        self.num_neighbors = num_neighbors
        # The mask is moved to the graph of the particles; until then it is on a single node.
        nowhere = Graph.from_edges(np.zeros((2, 0), dtype=np.int64), num_nodes=1, directed=True)
        num_walks = num_neighbors**num_hops if num_walks is None else num_walks
        mask = WalkMask(nowhere, num_walks, num_hops, normalization="row", symmetric=False, seed=seed)
        self.attention = MaskedAttention(dim, 1, mask)

    def find(self, positions: Tensor, padding: Tensor | None) -> Graph:
        """The directed graph of nearest particles, block-diagonal over clouds; padding is isolated."""
        return Graph.batch([_neighbor_graph(cloud, self.num_neighbors) for cloud in _clouds(positions, padding)])

    def prepare(self, found: Graph) -> Walks:
        """Walks on the graph."""
        assert isinstance(self.attention.mask, WalkMask)
        return Walks(found, self.attention.mask.sample(found))

    def forward(self, x: Tensor, positions: Tensor, around: Walks) -> Tensor:  # noqa: ARG002
        """Attend."""
        return self.attention(x.flatten(0, 1), graph=around.graph, features=around.features).view_as(x)


class AnchorNeighbors(NeighborLayer):
    """Message passing: some particles, the anchors, hear their neighbours, and the others hear their nearest anchor.

    Args:
        dim: Width of the tokens.
        num_neighbors: Particles that an anchor hears.
        anchor_fraction: Share of the particles that are anchors.
        seed: Seed of the choice of anchors, which is the same in every call.
    """

    def __init__(self, dim: int, num_neighbors: int = 16, anchor_fraction: float = 0.25, seed: int = 0) -> None:
        super().__init__()
        if not 0 < anchor_fraction <= 1:
            raise ValueError(f"`anchor_fraction` must lie in (0, 1], but is {anchor_fraction}.")
        self.num_neighbors, self.anchor_fraction, self.seed = num_neighbors, anchor_fraction, seed
        self.messages = MessagePassing(dim)

    def find(self, positions: Tensor, padding: Tensor | None) -> AnchorLists:
        """Anchors, their neighbours, and the nearest anchor of every particle, all clouds side by side."""
        parts = [self._lists(cloud) for cloud in _clouds(positions, padding)]
        num_anchors = np.cumsum([0] + [len(anchors) for anchors, _, _ in parts])
        size = positions.shape[1]
        joined = (
            np.concatenate([anchors + size * cloud for cloud, (anchors, _, _) in enumerate(parts)]),
            np.concatenate([neighbors + size * cloud for cloud, (_, neighbors, _) in enumerate(parts)]),
            np.concatenate([nearest + num_anchors[cloud] for cloud, (_, _, nearest) in enumerate(parts)]),
        )
        return AnchorLists(*(torch.from_numpy(part).to(positions.device) for part in joined))

    def _lists(self, cloud: _Cloud) -> tuple[Array, Array, Array]:
        """Anchors [A], their neighbours [A, k] and the nearest anchor of every place [N] of one cloud."""
        points, places, size = cloud
        num_anchors = max(1, round(self.anchor_fraction * len(points)))
        chosen = np.sort(np.random.default_rng(self.seed).permutation(len(points))[:num_anchors])
        neighbors = nearest_others(points, self.num_neighbors, of=chosen)
        nearest = np.zeros(size, dtype=np.int64)
        nearest[places] = cKDTree(points[chosen]).query(points, workers=-1)[1]
        return places[chosen], places[neighbors], nearest

    def forward(self, x: Tensor, positions: Tensor, around: AnchorLists) -> Tensor:
        """Pass messages."""
        return self.messages(x.flatten(0, 1), positions.flatten(0, 1), around).view_as(x)


class _Cloud(NamedTuple):
    """One point cloud of a batch."""

    points: Array  # [P, axes]
    places: Array  # where they stand among all places, [P]
    num_places: int


def _clouds(positions: Tensor, padding: Tensor | None) -> list[_Cloud]:
    arrays = positions.detach().cpu().double().numpy()
    size = arrays.shape[1]
    if padding is None:
        return [_Cloud(points, np.arange(size), size) for points in arrays]
    kept = [np.flatnonzero(row) for row in (~padding).cpu().numpy()]
    return [_Cloud(points[places], places, size) for points, places in zip(arrays, kept, strict=True)]


def _neighbor_graph(cloud: _Cloud, num_neighbors: int) -> Graph:
    points, places, size = cloud
    # In the order of a graph's edges, which saves sorting them all.
    target = np.sort(places[nearest_others(points, num_neighbors)], axis=1)
    return Graph.from_edges(np.stack([np.repeat(places, num_neighbors), target.ravel()]), size, directed=True)
