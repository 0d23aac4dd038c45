"""The exact power series of the adjacency matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from topomask.graph import Graph, Normalization
from topomask.masks.base import sparse_multiply
from topomask.masks.block_mask import BlockMask
from topomask.ops import segments
from topomask.ops.sparse_product import make_pattern

# Powers of W are kept as dense matrices up to this many numbers, 16 MB.
_MAX_KEPT_POWERS = 1 << 22


class PowerSeriesMask(BlockMask):
    r"""An exact power series of the adjacency matrix, by repeated sparse products.

    .. math:: M = \sum_{k=0}^{K} \alpha_k W^k

    A product takes O(K E) by Horner's rule and nothing of size N x N. Attention over pairs goes over those of the same
    graph: :math:`\sum_g n_g^2` of them on a batch of graphs, whose entries of the powers of W are found once.

    Args:
        graph: The graph.
        coefficients: :math:`\alpha`, [K + 1] or [H, K + 1]. A tensor with a gradient of its own is used as it is, any
            other becomes a parameter. See :mod:`topomask.series` for named kernels.
        normalization: ``"sym"``, ``"row"`` or ``"none"``, see :meth:`topomask.Graph.adjacency`.
        edge_weights: Weights to use instead of the graph's, one per entry of ``graph.to_edge_index()``; differentiable.
            An ``nn.Parameter`` is learnt, a tensor with a gradient of its own is used as it is, any other is a buffer.
            On an undirected graph, the two directions of an edge are averaged.

    Example:
        >>> import torch, topomask as tm
        >>> mask = tm.PowerSeriesMask(tm.path_graph(3), tm.series.heat(8))
        >>> mask.to_dense().shape
        torch.Size([1, 3, 3])

    References:
        Reid et al. (2025), Eq. 4.
    """

    coefficients: Tensor
    edge_weights: Tensor | None

    def __init__(
        self,
        graph: Graph,
        coefficients: Tensor,
        *,
        normalization: Normalization | None = None,
        edge_weights: Tensor | None = None,
    ) -> None:
        super().__init__()
        coefficients = torch.as_tensor(coefficients)
        if coefficients.ndim not in (1, 2) or not coefficients.shape[-1]:
            raise ValueError(
                f"`coefficients` must have shape [K + 1] or [H, K + 1], but has shape {tuple(coefficients.shape)}."
            )
        if not coefficients.is_floating_point():
            coefficients = coefficients.to(torch.get_default_dtype())
        if not coefficients.requires_grad:
            coefficients = nn.Parameter(coefficients.detach().clone())
        self.coefficients = coefficients
        self.num_heads = 1 if coefficients.ndim == 1 else len(coefficients)
        if edge_weights is None or edge_weights.requires_grad:
            self.edge_weights = edge_weights
        else:
            self.register_buffer("edge_weights", edge_weights)
        self._normalization = normalization
        self._bind(graph)
        self._follow(self.coefficients)

    def _bind(self, graph: Graph) -> None:
        adjacency, tensors = graph.adjacency(self._normalization), graph.tensors
        if self.edge_weights is not None and self.edge_weights.shape != tensors.columns.shape:
            raise ValueError(
                f"`edge_weights` must have shape [{len(tensors.columns)}], one per entry of graph.to_edge_index(), "
                f"but has shape {tuple(self.edge_weights.shape)}."
            )
        super()._bind(graph)
        with torch.device("cpu"):
            self._pattern = make_pattern(tensors.row_ptr, tensors.columns, graph.num_nodes)
        self._adjacency = torch.from_numpy(adjacency.data)
        self._has_negative_weights = bool((adjacency.data < 0).any())
        self._powers: dict[tuple[torch.dtype, bool, bool], Tensor] = {}

    def on(self, graph: Graph, features: Any = None) -> Self:
        """The same coefficients on another graph."""
        if self.edge_weights is not None:
            raise ValueError("This mask has `edge_weights` of its own graph. Build a new one for another graph.")
        return super().on(graph, features)

    def adjacency_values(self) -> Tensor:
        """The entries of W, [nnz], differentiable in the edge weights."""
        values = self._adjacency
        if self.edge_weights is not None:
            values = self._normalize(self.edge_weights)
        return values.abs() if self._is_magnitude else values

    def _normalize(self, weights: Tensor) -> Tensor:
        pattern = self._pattern
        row, column = segments.index(pattern.row_ptr), pattern.columns
        if not self.graph.directed:
            # The pattern is symmetric, so the column order lists the reverse of every edge.
            weights = (weights + weights[pattern.order]) / 2
        normalization = self.graph.check_normalization(self._normalization)
        if normalization == "none":
            return weights
        degrees = weights.new_zeros(self.num_queries).index_add(0, row, weights.abs())
        # A node whose weights vanish is isolated. Its degree is replaced before the root, whose slope at 0 is infinite.
        degrees = torch.where(degrees > 0, degrees, 1.0)
        return weights / (degrees[row].sqrt() * degrees[column].sqrt() if normalization == "sym" else degrees[row])

    def _alpha(self) -> Tensor:
        """The coefficients, [H, K + 1]."""
        alpha = self.coefficients if self.coefficients.ndim == 2 else self.coefficients[None]
        return alpha.abs() if self._is_magnitude else alpha

    def _series(self, x: Tensor, values: Tensor, transpose: bool = False) -> Tensor:
        alpha = self._alpha()
        dtype = torch.promote_types(x.dtype, torch.float32)
        alpha, values, x_fine = alpha.to(dtype), values.to(dtype), x.to(dtype)
        out = alpha[:, -1, None, None] * x_fine
        for k in range(alpha.shape[1] - 2, -1, -1):
            out = sparse_multiply(self._pattern, values, out, 1, transpose) + alpha[:, k, None, None] * x_fine
        return out.to(x.dtype)

    def product(self) -> Callable[[Tensor], Tensor]:
        """Multiplication by M with the entries of W computed once."""
        values = self.adjacency_values()
        return lambda x: self._series(x, values)

    def matmul(self, x: Tensor) -> Tensor:
        """Horner's rule with W."""
        return self.product()(x)

    def rmatmul(self, x: Tensor) -> Tensor:
        """Horner's rule with W^T."""
        return self._series(x, self.adjacency_values(), transpose=True)

    def to_dense(self) -> Tensor:
        """M, [H, N, N]."""
        dtype = torch.promote_types(self.coefficients.dtype, torch.float32)
        if self._keeps_powers(self.num_keys**2):
            return torch.einsum("hk,kij->hij", self._alpha().to(dtype), self._kept_powers(dtype, blocks=False))
        eye = torch.eye(self.num_keys, dtype=dtype, device=self.coefficients.device)
        return self.matmul(eye.expand(self.num_heads, -1, -1))

    def _block_values(self) -> Tensor:
        """The entries of all blocks, [H * P]."""
        dtype = torch.promote_types(self.coefficients.dtype, torch.float32)
        if self._keeps_powers(self._blocks.num_pairs):
            return (self._alpha().to(dtype) @ self._kept_powers(dtype, blocks=True)).flatten()

        def multiply(columns: Tensor) -> Tensor:
            return self.matmul(columns.to(dtype).expand(self.num_heads, -1, -1))

        return self._blocks.gather(multiply, self.structure).flatten()

    def _keeps_powers(self, num_entries: int) -> bool:
        """Whether powers are small and weights at rest, so that learning coefficients takes no products."""
        size = self.coefficients.shape[-1] * num_entries
        return self.edge_weights is None and size <= _MAX_KEPT_POWERS and not torch.compiler.is_compiling()

    def _kept_powers(self, dtype: torch.dtype, blocks: bool) -> Tensor:
        """The powers of W, or of its absolute entries for a magnitude, [K + 1, N, N]; of its blocks, [K + 1, P]."""
        key = dtype, self._is_magnitude and self._has_negative_weights, blocks
        if key not in self._powers:
            with torch.inference_mode(False), torch.no_grad():
                if blocks:
                    powers = self._blocks.gather(self._all_powers, self.structure)
                else:
                    eye = torch.eye(self.num_keys, dtype=torch.float64, device=self.coefficients.device)
                    powers = self._all_powers(eye)
                self._powers[key] = powers.to(dtype)
        return self._powers[key]

    def _all_powers(self, x: Tensor) -> Tensor:
        """The powers of W times x [N, C], from the zeroth on, [K + 1, N, C]."""
        values, powers = self.adjacency_values().double(), [x]
        for _ in range(self.coefficients.shape[-1] - 1):
            powers.append(sparse_multiply(self._pattern, values, powers[-1], 1))
        return torch.stack(powers)

    def _is_positive(self) -> bool:
        """Whether nothing is negative, so that the mask, with its gradient, is its own magnitude."""
        alpha = self.coefficients.detach()
        if self._has_negative_weights or self.edge_weights is not None or torch.compiler.is_compiling():
            return False
        # Elsewhere, looking would wait for the device.
        return alpha.device.type == "cpu" and bool((alpha > 0).all())

    def magnitude(self) -> PowerSeriesMask:
        """The series of absolute entries of W with absolute coefficients."""
        return self if self._is_magnitude or self._is_positive() else self._magnitude_view()

    def _state(self) -> list[Tensor]:
        """Coefficients and edge weights, which may be tensors with a gradient of their own."""
        return [self.coefficients] + ([] if self.edge_weights is None else [self.edge_weights])

    @property
    def product_cost(self) -> int:
        """Entries of W times the order, per head."""
        return self.num_heads * (self.coefficients.shape[-1] - 1) * (len(self._adjacency) + self.num_keys)

    @property
    def dense_cost(self) -> int:
        """Powers that are kept are added up; otherwise there is a product with every column."""
        if self._keeps_powers(self.num_keys**2):
            return self.coefficients.numel() * self.num_keys**2
        return self.product_cost * self.num_keys

    @property
    def refresh_cost(self) -> int:
        """That of a product, since a dense matrix is formed by products; that of all products that form blocks."""
        if self._is_frozen():
            return 0
        if self.num_pairs_bound is None:
            return self.product_cost
        # Both take a twentieth of what an entry takes that is formed of walks.
        if self._keeps_powers(self._blocks.num_pairs):
            return max(1, self.coefficients.numel() * self._blocks.num_pairs // 20)
        return self.product_cost * max(1, self._blocks.largest // 20)

    def _move(self, device: torch.device, dtype: torch.dtype) -> None:
        super()._move(device, dtype)
        self._pattern = self._pattern.to(device)
        # Kept in double precision: a product takes it in its own.
        self._adjacency = self._adjacency.to(device)
        self._powers = {}
