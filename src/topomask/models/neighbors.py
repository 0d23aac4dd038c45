"""Layers in which particles look at their neighbours, and how these are found."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor, nn

from topomask.graph import Graph
from topomask.graph.builders import nearest_others
from topomask.graph.input import Array, check_integer
from topomask.masks import WalkMask
from topomask.nn import MaskedAttention, MessagePassing
from topomask.nn.message_passing import AnchorLists

# Walks per particle that are taken without being asked for.
_MAX_DEFAULT_WALKS = 1000


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


class _SettledLayer(NeighborLayer):
    """A layer whose settings stand in its checkpoints, which no layer of other settings loads.

    Attributes:
        optional_state: What checkpoints from before settings were saved do not have.
    """

    optional_state = ("_extra_state",)

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(_take_own_settings)

    @abstractmethod
    def settings(self) -> dict[str, float]:
        """What a checkpoint and the layer must agree in."""

    def get_extra_state(self) -> Tensor:
        """The settings."""
        return torch.tensor(list(self.settings().values()), dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """A ValueError unless the settings of a checkpoint are those of this layer."""
        for (name, own), saved in zip(self.settings().items(), state.tolist(), strict=True):
            if own != saved:
                raise ValueError(
                    f"The checkpoint has {name}={saved:g}, but the model has {name}={own:g}. Build the model with "
                    f"{name}={saved:g}."
                )


def _take_own_settings(layer: _SettledLayer, stored: dict[str, Any], prefix: str, *_: Any) -> None:
    stored.setdefault(f"{prefix}_extra_state", layer.get_extra_state())


class Walks(NamedTuple):
    """Walks of all particles."""

    graph: Graph
    walks: Any


class WalkNeighbors(_SettledLayer):
    r"""Linear attention with one head, masked by a learnable function of the walks from particle to particle.

    .. math:: M = \sum_{l=0}^{L} f_l\,(D^{-1} A)^l

    where A lists the k nearest particles of every particle, a directed graph that is built anew in every call. All
    :math:`k^L` repelling walkers of a particle together take every walk of length L once, so M is exact to rounding.
    In a cloud of at most k particles all others are neighbours; there, and with fewer walks, M is an estimate.

    Args:
        dim: Width of the tokens.
        num_neighbors: Neighbours k of every particle.
        num_hops: Length of the walks L.
        num_walks: Walks per particle. Default: :math:`k^L`, where that is at most 1,000.
        seed: Seed of the walks.

    References:
        Reid et al. (2025), App. C.3 and Alg. 2.
    """

    def __init__(
        self, dim: int, num_neighbors: int = 3, num_hops: int = 3, num_walks: int | None = None, seed: int = 0
    ) -> None:
        super().__init__()
        for name, value in (("num_neighbors", num_neighbors), ("num_hops", num_hops)):
            check_integer(name, value, 1)
        self.num_neighbors = num_neighbors
        num_walks = _all_walks(num_neighbors, num_hops) if num_walks is None else num_walks
        mask = WalkMask(None, num_walks, num_hops, normalization="row", symmetric=False, seed=seed)
        self.attention = MaskedAttention(dim, 1, mask)

    def find(self, positions: Tensor, padding: Tensor | None) -> Graph:
        """The directed graph of nearest particles, block-diagonal over clouds; padding is isolated."""
        return Graph.batch([_neighbor_graph(cloud, self.num_neighbors) for cloud in _clouds(positions, padding)])

    def settings(self) -> dict[str, float]:
        """Neighbours; the length of the walks is known to the mask."""
        return {"num_neighbors": self.num_neighbors}

    def prepare(self, found: Graph) -> Walks:
        """Walks on the graph."""
        assert isinstance(self.attention.mask, WalkMask)
        return Walks(found, self.attention.mask.sample(found))

    # The graph is another one in every call, and made of arrays that the compiler cannot follow.
    @torch.compiler.disable
    def forward(self, x: Tensor, positions: Tensor, around: Walks) -> Tensor:  # noqa: ARG002
        """Attend."""
        return self.attention(x.flatten(0, 1), graph=around.graph, walks=around.walks).view_as(x)


class AnchorNeighbors(_SettledLayer):
    """Message passing: some particles, the anchors, hear their neighbours, and the others hear their nearest anchor.

    Args:
        dim: Width of the tokens.
        num_neighbors: Particles that an anchor hears. Every cloud must have more.
        anchor_fraction: Share of the particles that are anchors.
        seed: Seed of the choice of anchors, which is the same in every call.
        num_axes: Dimensions of space.
    """

    def __init__(
        self, dim: int, num_neighbors: int = 16, anchor_fraction: float = 0.25, seed: int = 0, num_axes: int = 3
    ) -> None:
        super().__init__()
        check_integer("num_neighbors", num_neighbors, 1)
        if not 0 < anchor_fraction <= 1:
            raise ValueError(f"`anchor_fraction` must lie in (0, 1], but is {anchor_fraction}.")
        self.num_neighbors, self.anchor_fraction, self.seed = num_neighbors, anchor_fraction, seed
        self.messages = MessagePassing(dim, num_axes=num_axes)

    def find(self, positions: Tensor, padding: Tensor | None) -> AnchorLists:
        """Anchors, their neighbours, and the nearest anchor of every particle, all clouds side by side."""
        clouds = _clouds(positions, padding)
        for number, cloud in enumerate(clouds):
            if len(cloud.points) <= self.num_neighbors:
                raise ValueError(
                    f"`num_neighbors` must be less than the number of particles of every cloud, but is "
                    f"{self.num_neighbors}, and cloud {number} has {len(cloud.points)} particles. Build the model with "
                    "fewer neighbours, or leave the cloud out."
                )
        parts = [self._lists(cloud) for cloud in clouds]
        num_anchors = np.cumsum([0] + [len(anchors) for anchors, _, _ in parts])
        size = positions.shape[1]
        joined = (
            np.concatenate([anchors + size * cloud for cloud, (anchors, _, _) in enumerate(parts)]),
            np.concatenate([neighbors + size * cloud for cloud, (_, neighbors, _) in enumerate(parts)]),
            np.concatenate([nearest + num_anchors[cloud] for cloud, (_, _, nearest) in enumerate(parts)]),
        )
        return AnchorLists(*(torch.from_numpy(part).to(positions.device) for part in joined))

    def settings(self) -> dict[str, float]:
        """Neighbours, and the share of anchors."""
        return {"num_neighbors": self.num_neighbors, "anchor_fraction": self.anchor_fraction}

    def _lists(self, cloud: _Cloud) -> tuple[Array, Array, Array]:
        """Anchors [A], their neighbours [A, k] and the nearest anchor of every place [N] of one cloud."""
        points, places, size = cloud
        num_anchors = max(1, round(self.anchor_fraction * len(points)))
        chosen = np.sort(np.random.default_rng(self.seed).permutation(len(points))[:num_anchors])
        neighbors = nearest_others(points, self.num_neighbors, of=chosen)
        nearest = np.zeros(size, dtype=np.int64)
        nearest[places] = cKDTree(points[chosen]).query(points, workers=torch.get_num_threads())[1]
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
    kept = np.ones(arrays.shape[:2], dtype=bool) if padding is None else (~padding).cpu().numpy()
    wrong = np.argwhere(kept & ~np.isfinite(arrays).all(axis=2))
    if len(wrong):
        cloud, particle = wrong[0]
        raise ValueError(
            f"`positions` must be finite, but particle {particle} of cloud {cloud} is at {arrays[cloud, particle]}. "
            "Remove it, or mark it in `padding`."
        )
    places = [np.flatnonzero(row) for row in kept]
    return [_Cloud(points[own], own, size) for points, own in zip(arrays, places, strict=True)]


def _neighbor_graph(cloud: _Cloud, num_neighbors: int) -> Graph:
    points, places, size = cloud
    num_neighbors = min(num_neighbors, len(points) - 1)
    if num_neighbors < 1:
        return Graph.from_edges(np.zeros((2, 0), dtype=np.int64), size, directed=True)
    # In the order of a graph's edges, which saves sorting them all.
    target = np.sort(places[nearest_others(points, num_neighbors)], axis=1)
    return Graph.from_edges(np.stack([np.repeat(places, num_neighbors), target.ravel()]), size, directed=True)


def _all_walks(num_neighbors: int, num_hops: int) -> int:
    """How many walks there are from a particle; a ValueError if that is more than one would like to take."""
    count = num_neighbors**num_hops
    if count > _MAX_DEFAULT_WALKS:
        raise ValueError(
            f"`num_walks` is not given, and num_neighbors**num_hops = {num_neighbors}**{num_hops} = {count:,} walks "
            f"per particle are more than {_MAX_DEFAULT_WALKS:,}. Set num_walks; fewer walks estimate the mask."
        )
    return count
