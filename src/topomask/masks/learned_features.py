"""Masks of free features per node."""

from __future__ import annotations

import torch
from torch import nn

from topomask.graph.input import check_counts
from topomask.masks.low_rank import LowRankOperator
from topomask.masks.mask import FixedMask
from topomask.masks.operator import Operator


class LearnedFeatureMask(FixedMask):
    r"""A mask of free features per node, :math:`M = \Phi\Phi^\top`, that does not use a graph: O(N r).

    Graph random features are a special case, so this ablation shows what the graph contributes: it has N r parameters
    per head, works on its own nodes only, and should do worse. (For separate features of keys, see
    :class:`topomask.LowRankMask`.)

    Features start as :math:`\Phi_{ic} = (1 + 0.1\,\varepsilon_{ic}) / \sqrt r` with normal :math:`\varepsilon`, so M
    is close to 1 and attention starts almost unmasked.

    Args:
        num_nodes: Nodes N.
        num_features: Features per node r. Default: N.
        num_heads: Heads; each has its own features.

    Example:
        >>> import torch, topomask as tm
        >>> mask = tm.LearnedFeatureMask(num_nodes=64, num_features=16, num_heads=2)
        >>> (mask @ torch.randn(2, 64, 8)).shape
        torch.Size([2, 64, 8])

    References:
        Reid et al. (2025), App. C.2.
    """

    def __init__(self, num_nodes: int, *, num_features: int | None = None, num_heads: int = 1) -> None:
        num_features = num_nodes if num_features is None else num_features
        check_counts(num_nodes=num_nodes, num_features=num_features, num_heads=num_heads)
        super().__init__(num_heads=num_heads)
        self.features = nn.Parameter(torch.empty(num_heads, num_nodes, num_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial features."""
        scale = self.features.shape[-1] ** -0.5
        nn.init.normal_(self.features, scale, 0.1 * scale)

    def _operator(self) -> Operator:
        return LowRankOperator(self, self.features)

    def extra_repr(self) -> str:
        """Settings shown when the module is printed."""
        num_heads, num_nodes, num_features = self.features.shape
        return f"num_nodes={num_nodes}, num_features={num_features}, num_heads={num_heads}"
