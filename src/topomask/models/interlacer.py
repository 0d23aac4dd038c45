"""Point clouds in motion: attention between all particles alternates with looks at the neighbours."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from topomask.graph.input import check_integer
from topomask.models.encoder import init_linear
from topomask.models.neighbors import AnchorNeighbors, NeighborLayer, WalkNeighbors
from topomask.nn import MLP, Attention, TransformerBlock
from topomask.support.near_names import check_options

Neighbors = Literal["grf", "messages", "none"]

# A neighbour layer for tokens of a width.
NeighborFactory = Callable[[int], NeighborLayer]

# The layer behind every name, and the options that it takes.
_KINDS: dict[str, tuple[type[NeighborLayer] | None, tuple[str, ...]]] = {
    "grf": (WalkNeighbors, ("num_neighbors", "num_hops", "num_walks")),
    "messages": (AnchorNeighbors, ("num_neighbors", "anchor_fraction")),
    "none": (None, ()),
}


class Interlacer(nn.Module):
    r"""Predicts how a point cloud moves: linear attention between all particles alternates with neighbour layers.

    .. math:: p' = p + \delta \tanh(\Delta_p), \qquad x' = x + \Delta_x

    where positions p and features x of all particles make up the state, and no particle moves by more than
    :math:`\delta` along an axis. Neighbours are found anew in every call, on positions without their gradient.

    Attention and perceptrons start with uniform weights after Glorot and no bias, as in vision transformers. Neighbour
    layers start as torch's linear layers do, with smaller weights and with biases.

    Args:
        feature_dim: Features of a particle.
        dim: Width of the tokens.
        depth: Pairs of a layer of linear attention and a neighbour layer.
        num_heads: Heads of the linear attention, which has ReLU features.
        mlp_ratio: Width of the perceptrons, in terms of ``dim``.
        neighbors: ``"grf"`` for attention masked by walks (:class:`~topomask.models.neighbors.WalkNeighbors`),
            ``"messages"`` for message passing by anchors (:class:`~topomask.models.neighbors.AnchorNeighbors`), or
            ``"none"``. Or a function that makes a layer of a width; all layers get what the first one finds.
        num_neighbors: Neighbours of a particle, or of an anchor. Default: 3 for ``"grf"``, 16 for ``"messages"``.
        num_hops: Length of the walks, for ``"grf"``. Default: 3.
        anchor_fraction: Share of the particles that are anchors, for ``"messages"``. Default: 0.25.
        max_step: How far a particle moves in a step at most, along an axis.
        num_axes: Dimensions of space.
        num_walks: Walks per particle, for ``"grf"``. Default: all ``num_neighbors**num_hops``, which make the mask
            exact; more than 1,000 must be asked for.

    Example:
        >>> import torch, topomask as tm
        >>> model = tm.models.Interlacer(feature_dim=4, dim=16, depth=1, num_heads=2)
        >>> positions, features = model(torch.rand(2, 50, 3), torch.randn(2, 50, 4))
        >>> positions.shape, features.shape
        (torch.Size([2, 50, 3]), torch.Size([2, 50, 4]))

    References:
        Whitney et al. (2024); Reid et al. (2025), App. C.3.
    """

    def __init__(
        self,
        feature_dim: int = 16,
        dim: int = 128,
        depth: int = 4,
        num_heads: int = 4,
        mlp_ratio: float = 2.0,
        neighbors: Neighbors | NeighborFactory = "grf",
        num_neighbors: int | None = None,
        num_hops: int | None = None,
        anchor_fraction: float | None = None,
        max_step: float = 0.25,
        num_axes: int = 3,
        num_walks: int | None = None,
    ) -> None:
        super().__init__()
        for name, value, low in (("feature_dim", feature_dim, 0), ("depth", depth, 1), ("num_axes", num_axes, 1)):
            check_integer(name, value, low)
        if not 0 < max_step < math.inf:
            raise ValueError(f"`max_step` must be positive and finite, but is {max_step}.")
        options = {
            "num_neighbors": num_neighbors,
            "num_hops": num_hops,
            "num_walks": num_walks,
            "anchor_fraction": anchor_fraction,
        }
        make = _neighbor_factory(neighbors, options, num_axes)
        hidden_dim = round(mlp_ratio * dim)
        self.max_step, self.num_axes, self.feature_dim = max_step, num_axes, feature_dim
        self.embedding = nn.Linear(num_axes + feature_dim, dim)
        self.blocks = nn.ModuleList(
            TransformerBlock(Attention(dim, num_heads), MLP(dim, hidden_dim), nn.LayerNorm(dim), nn.LayerNorm(dim))
            for _ in range(depth)
        )
        self.neighbors = nn.ModuleList() if make is None else nn.ModuleList(make(dim) for _ in range(depth))
        self.neighbor_norms = nn.ModuleList(nn.LayerNorm(dim) for _ in self.neighbors)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_axes + feature_dim)
        # Particles rest at first.
        nn.init.normal_(self.head.weight, std=1e-3)
        nn.init.zeros_(self.head.bias)
        init_linear(self.blocks)

    def forward(self, positions: Tensor, features: Tensor, padding: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """One step.

        Args:
            positions: Where particles are, [B, N, axes], or [N, axes] for one cloud.
            features: Their features, [B, N, F] or [N, F].
            padding: [B, N] or [N], True where there is no particle.

        Returns:
            Positions and features after the step, same shapes. What stands in padding means nothing, and may be
            anything.
        """
        self._check_state(positions, features, padding)
        if positions.ndim == 2:
            state = self(positions[None], features[None], None if padding is None else padding[None])
            return state[0][0], state[1][0]
        if not positions.shape[:-1].numel():
            return positions.clone(), features.clone()
        if padding is not None:
            # Whatever stands there, NaN included, must not be multiplied by 0, forth or back.
            positions, features = (x.masked_fill(padding[..., None], 0.0) for x in (positions, features))
        around = self.look_around(positions, padding)
        x = self.embedding(torch.cat([positions, features], dim=-1))
        for layer, block in enumerate(self.blocks):
            x = block(x, key_padding_mask=padding)
            if self.neighbors:
                x = x + self.neighbors[layer](self.neighbor_norms[layer](x), positions, around)
        move, change = self.head(self.norm(x)).split([self.num_axes, self.feature_dim], dim=-1)
        return positions + self.max_step * torch.tanh(move), features + change

    @torch.compiler.disable
    def look_around(self, positions: Tensor, padding: Tensor | None = None) -> Any:
        """What all neighbour layers know about where particles are, [B, N, axes]; None without such layers."""
        if not self.neighbors:
            return None
        layer = cast(NeighborLayer, self.neighbors[0])
        return layer.prepare(layer.find(positions, padding))

    def rollout(
        self, positions: Tensor, features: Tensor, num_steps: int, padding: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Several steps, each from where the last one led.

        Args:
            positions: Where particles are, [B, N, axes] or [N, axes].
            features: Their features, [B, N, F] or [N, F].
            num_steps: Steps S.
            padding: [B, N] or [N], True where there is no particle.

        Returns:
            Positions and features after every step, with an axis [S, ...] in front.
        """
        if num_steps < 1:
            raise ValueError(f"`num_steps` must be at least 1, but is {num_steps}.")
        states = []
        for _ in range(num_steps):
            positions, features = self(positions, features, padding)
            states.append((positions, features))
        return torch.stack([state[0] for state in states]), torch.stack([state[1] for state in states])

    def _check_state(self, positions: Tensor, features: Tensor, padding: Tensor | None) -> None:
        expected = (*positions.shape[:-1], self.feature_dim)
        if positions.ndim not in (2, 3) or positions.shape[-1] != self.num_axes or features.shape != expected:
            raise ValueError(
                f"`positions` and `features` must have shapes [B, N, {self.num_axes}] and [B, N, {self.feature_dim}], "
                f"but have shapes {tuple(positions.shape)} and {tuple(features.shape)}."
            )
        if padding is not None and (padding.shape != positions.shape[:-1] or padding.dtype != torch.bool):
            raise ValueError(
                f"`padding` must be boolean with shape {tuple(positions.shape[:-1])}, True where there is no particle, "
                f"but has shape {tuple(padding.shape)} and dtype {padding.dtype}."
            )


def _neighbor_factory(
    neighbors: str | NeighborFactory, options: dict[str, Any], num_axes: int
) -> NeighborFactory | None:
    """What makes the neighbour layers; None for none."""
    if not callable(neighbors) and neighbors not in get_args(Neighbors):
        raise ValueError(
            f"`neighbors` must be one of {get_args(Neighbors)}, or a function that makes a layer, but is {neighbors!r}."
        )
    options = {name: value for name, value in options.items() if value is not None}
    kind, takes = (neighbors, ()) if callable(neighbors) else _KINDS[neighbors]
    check_options(f"neighbors={neighbors!r}", options, takes)
    # Messages are about positions, walks are not.
    options = options | {"num_axes": num_axes} if kind is AnchorNeighbors else options
    return None if kind is None else partial(kind, **options)


@dataclass(frozen=True)
class InterlacerConfig:
    """The arguments of :class:`Interlacer` as data.

    Attributes:
        feature_dim: Features of a particle.
        dim: Width of the tokens.
        depth: Pairs of a layer of linear attention and a neighbour layer.
        num_heads: Heads of the linear attention.
        mlp_ratio: Width of the perceptrons, in terms of dim.
        neighbors: "grf", "messages" or "none".
        num_neighbors: Neighbours of a particle, or of an anchor. Default: 3 for "grf", 16 for "messages".
        num_hops: Length of the walks, for "grf". Default: 3.
        anchor_fraction: Share of the particles that are anchors, for "messages". Default: 0.25.
        max_step: How far a particle moves in a step at most, along an axis.
        num_axes: Dimensions of space.
        num_walks: Walks per particle, for "grf". Default: all num_neighbors**num_hops, if that is at most 1,000.
    """

    feature_dim: int = 16
    dim: int = 128
    depth: int = 4
    num_heads: int = 4
    mlp_ratio: float = 2.0
    neighbors: Neighbors = "grf"
    num_neighbors: int | None = None
    num_hops: int | None = None
    anchor_fraction: float | None = None
    max_step: float = 0.25
    num_axes: int = 3
    num_walks: int | None = None

    def build(self) -> Interlacer:
        """The model."""
        return Interlacer(**{field.name: getattr(self, field.name) for field in dataclasses.fields(self)})
