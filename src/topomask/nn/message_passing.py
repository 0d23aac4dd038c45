"""Messages between neighbouring particles."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class AnchorLists(NamedTuple):
    """Who is near whom, for :class:`MessagePassing`: anchors A, neighbours k, particles N."""

    anchors: Tensor  # particles that are anchors, [A]
    neighbors: Tensor  # particles that each of them hears, [A, k]
    nearest: Tensor  # the anchor, as a place in `anchors`, that is nearest to each particle, [N]


class MessagePassing(nn.Module):
    r"""Anchors hear their nearest particles, and all other particles hear their nearest anchor.

    .. math::
        m_a &= \frac 1 k \sum_{j \in N_k(a)} \mathrm{MLP}_1(x_a, x_j, p_j - p_a), \qquad
        y_a = \mathrm{MLP}_2(x_a, m_a) \\
        y_i &= \mathrm{MLP}_3(x_i, x_a + y_a, p_i - p_a), \qquad a = \text{the anchor nearest to } i

    All perceptrons have one hidden layer with ReLU. Their linear parts are applied to particles rather than to pairs
    wherever that is the same: before a neighbour is looked up, and after messages are averaged.

    Args:
        dim: Width of the tokens.
        hidden_dim: Width of the hidden layers. Default: ``dim``.
        num_axes: Dimensions of space.

    Example:
        >>> import torch, topomask as tm
        >>> layer = tm.nn.MessagePassing(8)
        >>> heard, nearest = torch.tensor([[1, 2], [3, 1]]), torch.tensor([0, 0, 1, 1])
        >>> lists = tm.nn.AnchorLists(torch.tensor([0, 2]), heard, nearest)
        >>> layer(torch.randn(4, 8), torch.randn(4, 3), lists).shape
        torch.Size([4, 8])

    References:
        Whitney et al. (2024), as described by Reid et al. (2025), App. C.3. Widths, and the mean over messages, are
        ours: the text does not have them.
    """

    def __init__(self, dim: int, hidden_dim: int | None = None, num_axes: int = 3) -> None:
        super().__init__()
        hidden_dim = dim if hidden_dim is None else hidden_dim
        for name, size in (("dim", dim), ("hidden_dim", hidden_dim), ("num_axes", num_axes)):
            if size < 1:
                raise ValueError(f"`{name}` must be at least 1, but is {size}.")
        # The first layers of the perceptrons, apart by what they look at.
        self.receiver = nn.Linear(dim, hidden_dim)
        self.sender = nn.Linear(dim, hidden_dim, bias=False)
        self.offset = nn.Linear(num_axes, hidden_dim, bias=False)
        self.message = nn.Linear(hidden_dim, dim)
        self.anchor_hidden = nn.Linear(2 * dim, hidden_dim)
        self.anchor_out = nn.Linear(hidden_dim, dim)
        self.particle = nn.Linear(dim, hidden_dim)
        self.from_anchor = nn.Linear(dim, hidden_dim, bias=False)
        self.anchor_offset = nn.Linear(num_axes, hidden_dim, bias=False)
        self.particle_out = nn.Linear(hidden_dim, dim)

    def forward(self, x: Tensor, positions: Tensor, lists: AnchorLists) -> Tensor:
        """Updates of all particles.

        Args:
            x: Tokens, [N, C].
            positions: Where the particles are, [N, num_axes].
            lists: Who is near whom.

        Returns:
            Updates, [N, C].
        """
        anchors, neighbors, nearest = lists
        senders = self.sender(x) + self.offset(positions)
        receivers = self.receiver(x[anchors]) - self.offset(positions[anchors])
        # In place, since nothing is as large as what stands on pairs, [A, k, hidden].
        hidden = F.embedding(neighbors, senders).add_(receivers[:, None]).relu_()
        heard = self.message(hidden.mean(dim=1))
        update = self.anchor_out(F.relu(self.anchor_hidden(torch.cat([x[anchors], heard], dim=-1))))
        spoken = self.from_anchor(x[anchors] + update) - self.anchor_offset(positions[anchors])
        hidden = F.embedding(nearest, spoken) + self.particle(x) + self.anchor_offset(positions)
        return self.particle_out(F.relu(hidden)).index_copy(0, anchors, update)
