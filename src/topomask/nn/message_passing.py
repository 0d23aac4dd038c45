"""Message passing between neighbouring particles."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from topomask.attention.inputs import check_tokens
from topomask.support.checks import check_sizes


class AnchorLists(NamedTuple):
    """The neighbour lists of :class:`MessagePassing`, for A anchors with k neighbours each among N particles."""

    anchors: Tensor  # [A], the particles that are anchors
    neighbors: Tensor  # [A, k], the neighbours of each anchor
    nearest: Tensor  # [N], the nearest anchor of each particle, as an index into `anchors`


class MessagePassing(nn.Module):
    r"""Message passing from the nearest particles to anchors, and from anchors to all other particles.

    .. math::
        m_a &= \frac 1 k \sum_{j \in N_k(a)} \mathrm{MLP}_1(x_a, x_j, p_j - p_a), \qquad
        y_a = \mathrm{MLP}_2(x_a, m_a) \\
        y_i &= \mathrm{MLP}_3(x_i, x_a + y_a, p_i - p_a), \qquad a = \text{the anchor nearest to } i

    All MLPs have one hidden layer with ReLU. Where possible, their linear layers are applied to particles instead of
    pairs: before neighbours are looked up, and after messages are averaged.

    Args:
        dim: Width of the tokens.
        hidden_dim: Width of the hidden layers. Default: ``dim``.
        num_axes: Number of spatial dimensions.

    Example:
        >>> import torch, topomask as tm
        >>> layer = tm.nn.MessagePassing(8)
        >>> neighbors, nearest = torch.tensor([[1, 2], [3, 1]]), torch.tensor([0, 0, 1, 1])
        >>> lists = tm.nn.AnchorLists(torch.tensor([0, 2]), neighbors, nearest)
        >>> layer(torch.randn(4, 8), torch.randn(4, 3), lists).shape
        torch.Size([4, 8])

    References:
        Whitney et al. (2024), as described by Reid et al. (2025), App. C.3, which does not specify the widths and the
        mean over messages.
    """

    def __init__(self, dim: int, hidden_dim: int | None = None, num_axes: int = 3) -> None:
        super().__init__()
        hidden_dim = dim if hidden_dim is None else hidden_dim
        check_sizes(dim=dim, hidden_dim=hidden_dim, num_axes=num_axes)
        # The first layer of each MLP is split by its inputs.
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
        """Compute updates of all particles.

        Args:
            x: Tokens, [N, C].
            positions: Positions of the particles, [N, num_axes].
            lists: Anchors and neighbours.

        Returns:
            Updates, [N, C].
        """
        check_tokens(x, self.sender)
        check_tokens(positions, self.offset, name="positions")
        anchors, neighbors, nearest = lists
        senders = self.sender(x) + self.offset(positions)
        receivers = self.receiver(x[anchors]) - self.offset(positions[anchors])
        # In place, since this tensor over pairs, [A, k, hidden], is by far the largest.
        hidden = F.embedding(neighbors, senders).add_(receivers[:, None]).relu_()
        messages = self.message(hidden.mean(dim=1))
        update = self.anchor_out(F.relu(self.anchor_hidden(torch.cat([x[anchors], messages], dim=-1))))
        replies = self.from_anchor(x[anchors] + update) - self.anchor_offset(positions[anchors])
        hidden = F.embedding(nearest, replies) + self.particle(x) + self.anchor_offset(positions)
        return self.particle_out(F.relu(hidden)).index_copy(0, anchors, update)
