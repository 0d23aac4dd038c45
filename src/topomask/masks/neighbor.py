"""A mask of edges."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from topomask.graph import Graph
from topomask.masks.base import Entries, sparse_multiply
from topomask.masks.graph_mask import GraphMask
from topomask.ops import segments
from topomask.ops.locality import suggest_order
from topomask.ops.pair_attention import MIN_ENTRIES_PER_ROW, TileWork, estimate_tiles
from topomask.ops.sparse_product import Pattern, make_pattern


class NeighborMask(GraphMask):
    r"""Every node attends to its neighbours and to itself: O(E).

    .. math:: M_{ij} = 1 \text{ if } i = j \text{ or there is an edge from } i \text{ to } j, \text{ else } 0

    With softmax attention this is a graph attention layer: the one of PyG's ``TransformerConv``, on the support of its
    ``GATConv``. There is nothing to learn, so one head serves all.

    Row i of the mask is row i of the adjacency matrix, as in the other masks: on a directed graph, a node attends to
    the nodes that its edges lead to. PyG sends messages along edges, so there a node attends to the nodes that its
    edges come from. For that, reverse them: ``Graph.from_edges(edge_index.flip(0), directed=True)``.

    Args:
        graph: The graph.
        weighted: Take the weights of the graph as entries, and 1 for self-loops that it does not have.
        self_loops: Let nodes attend to themselves. Otherwise they do where the graph has a self-loop, and a node
            without edges attends to nothing, which gives 0.

    Example:
        >>> import topomask as tm
        >>> tm.NeighborMask(tm.path_graph(3)).to_dense()
        tensor([[[1., 1., 0.],
                 [1., 1., 1.],
                 [0., 1., 1.]]])

    References:
        Velickovic et al. (2018); Shi et al. (2021); Reid et al. (2025), App. B.6.
    """

    def __init__(self, graph: Graph, *, weighted: bool = False, self_loops: bool = True) -> None:
        super().__init__()
        self.num_heads = 1
        self.weighted, self.self_loops = weighted, self_loops
        self._bind(graph)
        self._follow(torch.empty(0))

    def _bind(self, graph: Graph) -> None:
        super()._bind(graph)
        matrix = graph.to_scipy()
        if self.self_loops:
            matrix = matrix + sp.diags_array((matrix.diagonal() == 0).astype(np.float64), format="csr")
            matrix.sort_indices()
        self._is_signed = self.weighted and graph.signed
        with torch.device("cpu"):
            row_ptr, columns = (torch.from_numpy(x.astype(np.int64)) for x in (matrix.indptr, matrix.indices))
            self._pattern = make_pattern(row_ptr, columns, graph.num_nodes)
            self._rows = segments.index(row_ptr)  # [P]
            # In double precision: a product takes them in its own.
            self._values = torch.from_numpy(matrix.data) if self.weighted else torch.ones(matrix.nnz).double()
        suggest_order(self._pattern.columns, graph, lambda graph: graph.node_groups)
        tiled = matrix.nnz >= MIN_ENTRIES_PER_ROW * graph.num_nodes
        self._tile_work = estimate_tiles(self._pattern, None) if tiled else None

    def _signed_values(self) -> Tensor:
        return self._values.abs() if self._is_magnitude else self._values

    def product(self) -> Callable[[Tensor], Tensor]:
        """Multiplication by M, in at least float32."""
        values = self._signed_values()

        def multiply(x: Tensor) -> Tensor:
            dtype = torch.promote_types(x.dtype, torch.float32)
            return sparse_multiply(self._pattern, values.to(dtype), x, 1)

        return multiply

    def matmul(self, x: Tensor) -> Tensor:
        """Sums over neighbours."""
        return self.product()(x)

    def rmatmul(self, x: Tensor) -> Tensor:
        """Sums over those that have a node as their neighbour."""
        values = self._signed_values().to(torch.promote_types(x.dtype, torch.float32))
        return sparse_multiply(self._pattern, values, x, 1, transpose=True)

    def to_dense(self) -> Tensor:
        """M, [1, N, N]."""
        pattern, values, _ = self.entries()
        return values.new_zeros(pattern.shape).index_put((self._rows, pattern.columns.long()), values)[None]

    def magnitude(self) -> NeighborMask:
        """Absolute weights; the mask itself where none is negative."""
        return self if self._is_magnitude or not self._is_signed else self._magnitude_view()

    def pattern(self) -> Pattern:
        """The edges, and self-loops."""
        return self._pattern

    def entries(self) -> Entries:
        """Ones, or weights, on the edges."""
        return self._keep("entries", self._entries)

    def _entries(self) -> Entries:
        values = self._signed_values().to(torch.promote_types(self._probe.dtype, torch.float32))
        return Entries(self._pattern, values, values.abs() if self._is_signed else values)

    @property
    def tile_work(self) -> TileWork | None:
        """The work of attention in tiles, on dense graphs."""
        return self._tile_work if self._values.device.type == "cpu" else None

    @property
    def num_pairs_bound(self) -> int:
        """Entries of the mask."""
        return len(self._values)

    @property
    def product_cost(self) -> int:
        """Entries of the mask."""
        return len(self._values)

    @property
    def dense_cost(self) -> int:
        """Nothing: entries are written to their places."""
        return 0

    def _move(self, device: torch.device, dtype: torch.dtype) -> None:
        super()._move(device, dtype)
        self._pattern = self._pattern.to(device)
        self._rows, self._values = self._rows.to(device), self._values.to(device)

    def extra_repr(self) -> str:
        """Shown when the module is printed."""
        return f"{self.graph}, weighted={self.weighted}, self_loops={self.self_loops}"
