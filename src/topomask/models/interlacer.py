"""A model of moving point clouds: attention between all particles alternates with neighbour layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from topomask.graph.input import check_integer
from topomask.masks.registry import known_name
from topomask.models.encoder import init_linear
from topomask.models.neighbors import AnchorNeighbors, NeighborLayer, WalkNeighbors
from topomask.nn import MLP, Attention, TransformerBlock
from topomask.nn.sparse_rows import apply_linear
from topomask.support.checks import check_choice, check_options, check_sizes
from topomask.support.config import ModelConfig

Neighbors = Literal["grf", "messages", "none"]

# Makes a neighbour layer, given the width of the tokens.
NeighborFactory = Callable[[int], NeighborLayer]

# The layer of each name, and its options.
_KINDS: dict[str, tuple[type[NeighborLayer] | None, tuple[str, ...]]] = {
    "grf": (WalkNeighbors, ("num_neighbors", "num_hops", "num_walks")),
    "messages": (AnchorNeighbors, ("num_neighbors", "anchor_fraction")),
    "none": (None, ()),
}


class Interlacer(nn.Module):
    r"""Predict how a point cloud moves: linear attention between all particles alternates with neighbour layers.

    .. math:: p' = p + \delta \tanh(\Delta_p), \qquad x' = x + \Delta_x

    where p are the positions and x the features of all particles, and no particle moves by more than :math:`\delta`
    along an axis. Each call finds the neighbours again, without a gradient through positions.

    Attention and MLPs have the initialisation of vision transformers: Glorot uniform weights, zero biases. Neighbour
    layers have that of ``torch.nn.Linear``.

    Args:
        feature_dim: Number of features of a particle.
        dim: Width of the tokens.
        depth: Number of pairs of a linear attention layer and a neighbour layer.
        num_heads: Number of heads of the linear attention, which has ReLU features.
        mlp_ratio: Width of the MLPs, as a multiple of ``dim``.
        neighbors: ``"grf"`` for attention masked by walks (:class:`~topomask.models.neighbors.WalkNeighbors`),
            ``"messages"`` for message passing by anchors (:class:`~topomask.models.neighbors.AnchorNeighbors`), or
            ``"none"``. Or a function that makes a layer, given its width; the first layer finds the neighbours for all.
        num_neighbors: Number of neighbours of a particle, or of an anchor. Default: 3 for ``"grf"``, 16 for
            ``"messages"``.
        num_hops: Length of the walks, for ``"grf"``. Default: 3.
        anchor_fraction: Fraction of the particles that are anchors, for ``"messages"``. Default: 0.25.
        max_step: Maximum distance that a particle moves in a step, along an axis.
        num_axes: Number of spatial dimensions.
        num_walks: Number of walks per particle, for ``"grf"``. Default: all ``num_neighbors**num_hops``, if at most
            1,000, which makes the mask exact.

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
        options = dict(num_neighbors=num_neighbors, num_hops=num_hops, num_walks=num_walks)
        make = _neighbor_factory(neighbors, options | dict(anchor_fraction=anchor_fraction), num_axes)
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
        # At first, particles hardly move.
        nn.init.normal_(self.head.weight, std=1e-3)
        nn.init.zeros_(self.head.bias)
        init_linear(self.blocks)

    def forward(self, positions: Tensor, features: Tensor, padding: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Predict one step.

        Args:
            positions: Positions of the particles, [B, N, axes], or [N, axes] for one cloud.
            features: Their features, [B, N, F] or [N, F].
            padding: [B, N] or [N], True for padding.

        Returns:
            Positions and features after the step, in the same shapes. Their values in padding are meaningless.
        """
        self._check_state(positions, features, padding)
        if positions.ndim == 2:
            state = self(positions[None], features[None], None if padding is None else padding[None])
            return state[0][0], state[1][0]
        if not positions.shape[:-1].numel():
            return positions.clone(), features.clone()
        if padding is not None:
            # The contents of padding may be NaN, which must affect neither results nor gradients.
            positions, features = (x.masked_fill(padding[..., None], 0.0) for x in (positions, features))
        around = self.look_around(positions, padding)
        x = apply_linear(self.embedding, torch.cat([positions, features], dim=-1))
        for layer, block in enumerate(self.blocks):
            x = block(x, key_padding_mask=padding)
            if self.neighbors:
                x = x + self.neighbors[layer](self.neighbor_norms[layer](x), positions, around)
        move, change = self.head(self.norm(x)).split([self.num_axes, self.feature_dim], dim=-1)
        return positions + self.max_step * torch.tanh(move), features + change

    @torch.compiler.disable
    def look_around(self, positions: Tensor, padding: Tensor | None = None) -> Any:
        """Find the neighbours at positions [B, N, axes], for all neighbour layers; None if there are none."""
        if not self.neighbors:
            return None
        layer = cast(NeighborLayer, self.neighbors[0])
        return layer.prepare(layer.find(positions, padding))

    def rollout(
        self, positions: Tensor, features: Tensor, num_steps: int, padding: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Predict ``num_steps`` steps, each from the result of the previous one; otherwise like :meth:`forward`.

        Returns:
            Positions and features after each step, [num_steps, ...].
        """
        check_sizes(num_steps=num_steps)
        states = []
        for _ in range(num_steps):
            positions, features = self(positions, features, padding)
            states.append((positions, features))
        all_positions, all_features = zip(*states, strict=True)
        return torch.stack(all_positions), torch.stack(all_features)

    def _check_state(self, positions: Tensor, features: Tensor, padding: Tensor | None) -> None:
        expected = (*positions.shape[:-1], self.feature_dim)
        if positions.ndim not in (2, 3) or positions.shape[-1] != self.num_axes or features.shape != expected:
            raise ValueError(
                f"`positions` and `features` must have shapes [B, N, {self.num_axes}] and [B, N, {self.feature_dim}], "
                f"but have shapes {tuple(positions.shape)} and {tuple(features.shape)}."
            )
        if padding is not None and (padding.shape != positions.shape[:-1] or padding.dtype != torch.bool):
            raise ValueError(
                f"`padding` must be boolean with shape {tuple(positions.shape[:-1])}, True for padding, but has shape "
                f"{tuple(padding.shape)} and dtype {padding.dtype}."
            )


def _neighbor_factory(
    neighbors: str | NeighborFactory, options: dict[str, Any], num_axes: int
) -> NeighborFactory | None:
    """Return a function that makes the neighbour layers, or None if there are none."""
    neighbors = known_name(neighbors, _KINDS)
    if not callable(neighbors):
        check_choice("neighbors", neighbors, _KINDS, ", or a function that makes a layer")
    options = {name: value for name, value in options.items() if value is not None}
    kind, takes = (neighbors, ()) if callable(neighbors) else _KINDS[neighbors]
    check_options(f"neighbors={neighbors!r}", options, takes)
    # Messages depend on positions, walks do not.
    options = options | {"num_axes": num_axes} if kind is AnchorNeighbors else options
    return None if kind is None else partial(kind, **options)


@dataclass(frozen=True)
class InterlacerConfig(ModelConfig[Interlacer]):
    """The arguments of :class:`Interlacer` as data."""

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
