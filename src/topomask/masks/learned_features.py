"""A mask of free features per node."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from topomask.graph_input import check_integer
from topomask.masks.base import Mask
from topomask.masks.low_rank import low_rank_product


class LearnedFeatureMask(Mask):
    r"""A mask of free features per node, :math:`M = \Phi\Phi^\top`, that knows of no graph: O(N r).

    Graph random features are a special case, so this shows what the graph is good for: it has N r parameters per head,
    can be on its own nodes only, and should do worse. (For keys with features of their own, see
    :class:`topomask.LowRankMask`.)

    Features start as :math:`\Phi_{ic} = (1 + 0.1\,\varepsilon_{ic}) / \sqrt r` with normal :math:`\varepsilon`, where M
    is close to 1, so that attention starts almost as if there were no mask.

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

    def __init__(self, num_nodes: int, num_features: int | None = None, num_heads: int = 1) -> None:
        super().__init__()
        num_features = num_nodes if num_features is None else num_features
        for name, size in (("num_nodes", num_nodes), ("num_features", num_features), ("num_heads", num_heads)):
            check_integer(name, size, 1)
        self.num_heads = num_heads
        self.num_queries = self.num_keys = num_nodes
        self.features = nn.Parameter(torch.empty(num_heads, num_nodes, num_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the features anew."""
        scale = self.features.shape[-1] ** -0.5
        nn.init.normal_(self.features, scale, 0.1 * scale)

    def _phi(self) -> Tensor:
        phi = self.features.to(torch.promote_types(self.features.dtype, torch.float32))
        return phi.abs() if self._is_magnitude else phi

    def matmul(self, x: Tensor) -> Tensor:
        """Phi (Phi^T x)."""
        phi = self._phi()
        return low_rank_product(phi, phi, x)

    def rmatmul(self, x: Tensor) -> Tensor:
        """The same: M is symmetric."""
        return self.matmul(x)

    def to_dense(self) -> Tensor:
        """M, [H, N, N]."""
        phi = self._phi()
        return phi @ phi.mT

    def magnitude(self) -> LearnedFeatureMask:
        r"""The product of the absolute features, :math:`|\Phi| |\Phi|^\top`."""
        return self if self._is_magnitude else self._magnitude_view()

    @property
    def product_cost(self) -> int:
        """Features, of queries and of keys."""
        return 2 * self.features.numel()

    @property
    def dense_cost(self) -> int:
        """Features of a node for every entry."""
        return self.features.numel() * self.num_keys

    @property
    def refresh_cost(self) -> int:
        """That of a product, unless the dense matrix is kept."""
        return 0 if self._is_frozen() else self.product_cost
