"""Graphs as immutable compressed sparse rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, Self, get_args

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from topomask.graph import input as read
from topomask.graph.input import Array, Duplicates, check_integer, check_nodes, first_true
from topomask.graph.records import GROUPS, MATRICES, Records, SparseMatrix, find_record
from topomask.ops import segments
from topomask.ops.derived import plainly
from topomask.ops.sample_walks import GraphTensors
from topomask.support.checks import check_choice

Normalization = Literal["sym", "row", "none"]


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Graph:
    r"""A graph whose nodes are the tokens of a transformer.

    The adjacency matrix :math:`A` is stored as compressed sparse rows with ascending columns. Row :math:`i` holds the
    edges that leave node :math:`i`; an undirected edge is stored in both rows. Build one with :meth:`from_edges`,
    :meth:`from_scipy`, :meth:`from_networkx`, :meth:`from_pyg`, :meth:`batch`, or a builder such as
    :func:`topomask.grid_graph`.

    An edge that is listed more than once (in either direction if the graph is undirected) counts as one edge. Its
    weights must agree unless ``duplicates`` says how to merge them. A self-loop is one diagonal entry and counts once
    in the degree. Edges of weight zero are dropped.

    A graph never changes: its arrays are read-only. ``Graph(...)`` checks and copies the arrays it is given.

    Attributes:
        indptr: Row pointers, [N + 1], int64.
        indices: Columns, [nnz], int64.
        weights: Entries of A, [nnz], float64.
        directed: Whether A may be asymmetric.
        ids: Node ids that random walks are seeded by, [N]: the number of each node in its original graph.
        degrees: :math:`s_i = \sum_j |a_{ij}|`, [N].
        graph_index: The graph of the batch that each node belongs to, [N], ascending.
        num_graphs: Number of graphs in the batch.
        parts: The single graphs of a batch made by :meth:`batch`; otherwise empty.
        num_nodes: Number of nodes N.

    Example:
        >>> import topomask as tm
        >>> tm.Graph.from_edges([[0, 1, 2], [1, 2, 0]])
        Graph(num_nodes=3, num_edges=3)
    """

    indptr: Array
    indices: Array
    weights: Array
    directed: bool
    ids: Array
    degrees: Array
    graph_index: Array
    num_graphs: int = 1
    # Records of a batch are joined from those of its parts instead of computed again.
    parts: tuple[Graph, ...] = ()
    num_nodes: int = field(init=False)
    _records: Records = field(init=False)

    def __init__(self, *edges: Any, **arrays: Any) -> None:
        # Only for arrays from users: builders call `_trusted`.
        from topomask.graph.validation import checked_fields

        *needed, _, _ = known = [entry.name for entry in fields(self) if entry.init]
        if edges or not set(needed) <= arrays.keys() <= set(known):
            given = ", ".join([type(each).__name__ for each in edges] + [name for name in arrays if name not in known])
            raise ValueError(
                f"Graph(...) takes all of {', '.join(needed)} by name, but got ({given or 'fewer'}). Build graphs "
                "with tm.Graph.from_edges(edges, num_nodes), from_pyg, from_networkx or from_scipy."
            )
        self.__setstate__(checked_fields(**arrays))

    @classmethod
    def _trusted(cls, **arrays: Any) -> Self:
        """Make a graph from arrays that were just computed, without checks or copies."""
        graph = object.__new__(cls)
        graph.__setstate__({"num_graphs": 1, "parts": (), "num_nodes": len(arrays["indptr"]) - 1} | arrays)
        return graph

    def __getstate__(self) -> dict[str, Any]:
        """Leave out records, which can be computed again, and parts, which would be stored twice."""
        state = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "_records"}
        return state | {"parts": ()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state | {"_records": Records(self)})
        for name in ("indptr", "indices", "weights", "ids", "degrees", "graph_index"):
            array = self.__dict__[name]
            array.flags.writeable = False
            # A view cannot be made writeable again.
            self.__dict__[name] = array.view()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the graph itself: it never changes."""
        return self

    @classmethod
    def from_edges(
        cls,
        edges: Any,
        num_nodes: int | None = None,
        weights: Any = None,
        *,
        directed: bool = False,
        signed: bool = False,
        duplicates: Duplicates | None = None,
    ) -> Self:
        """Build a graph from a list of edges.

        Args:
            edges: Integer node numbers, [2, E] (as in PyG; a 2 x 2 input is read this way) or [E, 2]; NumPy, torch or
                nested lists.
            num_nodes: Number of nodes. Default: the largest node number plus one.
            weights: One weight per edge, [E]. Default: ones.
            directed: Keep the direction of edges. Otherwise (i, j) and (j, i) are the same edge.
            signed: Allow negative weights.
            duplicates: How to merge the weights of an edge that is listed more than once: ``"sum"``, ``"mean"`` or
                ``"first"``. In an undirected graph (i, j) and (j, i) are the same edge, so ``"sum"`` doubles all
                weights of a list that has both directions; :meth:`from_pyg` merges each direction separately. Default:
                the weights must agree, and the edge counts once.
        """
        if duplicates is not None:
            check_choice("duplicates", duplicates, get_args(Duplicates), " or None")
        pairs = read.edge_array(edges)
        values = np.ones(pairs.shape[1]) if weights is None else read.weight_array(weights, pairs, signed)
        num_nodes = read.node_count(pairs, num_nodes)
        if duplicates is not None:
            pairs, values = read.merge_edges(pairs, values, directed, duplicates)
        source, target = pairs
        if not directed:
            source, target = np.concatenate([source, target]), np.concatenate([target, source])
            values = np.concatenate([values, values])
        return cls._from_entries(source, target, values, num_nodes, directed)

    @classmethod
    def from_scipy(
        cls, matrix: Any, *, directed: bool = False, signed: bool = False, duplicates: Duplicates = "sum"
    ) -> Self:
        """Build a graph from a SciPy sparse matrix, with duplicates merged by ``"sum"``, ``"mean"`` or ``"first"``."""
        if duplicates is not None:
            check_choice("duplicates", duplicates, get_args(Duplicates))
        pairs, values = read.scipy_entries(matrix, summed=duplicates == "sum")
        pairs, values = read.merge_edges(pairs, read.weight_array(values, pairs, signed), True, duplicates)
        graph = cls._from_entries(pairs[0], pairs[1], values, read.node_count(pairs, matrix.shape[0]), directed)
        fix = "symmetrise it with (A + A.T) / 2"
        return graph if directed else graph._symmetrized("`matrix`", fix, fix)

    @classmethod
    def from_networkx(
        cls, graph: Any, *, weight: str = "weight", signed: bool = False, duplicates: Duplicates = "sum"
    ) -> Self:
        """Build a graph from a NetworkX graph; node k is the k-th node of the NetworkX graph.

        Edges without the attribute ``weight`` have weight 1. Parallel edges of a multigraph are summed unless
        ``duplicates`` is ``"mean"`` or ``"first"``. The result is directed if the NetworkX graph is.
        """
        import networkx as nx

        if graph.number_of_nodes() == 0:
            raise ValueError("`graph` has no nodes. Add at least one node.")
        options: dict[str, Any] = {"directed": graph.is_directed(), "signed": signed, "duplicates": duplicates}
        if duplicates != "sum":
            return cls.from_edges(*read.networkx_edges(graph, weight), **options)
        matrix = nx.to_scipy_sparse_array(graph, weight=weight, dtype=np.float64, format="csr")
        return cls.from_scipy(matrix, **options)

    @classmethod
    def from_pyg(
        cls, data: Any, *, directed: bool = False, signed: bool = False, duplicates: Duplicates | None = None
    ) -> Self:
        """Build a graph from a PyG ``Data`` or ``Batch``, with ``edge_weight`` if present; edge features are ignored.

        A ``Batch``, or data with ``batch``, stays a batch. In a directed graph a node attends to the targets of its
        edges, whereas PyG sends messages from source to target: flip ``edge_index`` to match PyG. ``duplicates`` works
        as in :meth:`from_edges`, but merges (i, j) and (j, i) separately; they must then agree unless ``directed``.
        """
        edge_index, weights = data.edge_index, getattr(data, "edge_weight", None)
        if edge_index is None:
            raise ValueError(
                "`data` has no `edge_index`. Convert `adj_t` with to_edge_index(), or set torch.empty(2, 0).long()."
            )
        options: dict[str, Any] = {"directed": True, "signed": signed, "duplicates": duplicates}
        graph = cls.from_edges(edge_index, data.num_nodes, weights, **options)
        if not directed:
            fixes = "add the reverse edges with PyG's to_undirected() first", "use to_undirected(..., reduce='mean')"
            graph = graph._symmetrized("`edge_index`", *fixes)
        starts = read.starts_in_pyg(data, graph.num_nodes)
        sizes = np.diff(starts)
        graph_index = np.repeat(np.arange(len(sizes)), sizes)
        read.check_crossing(graph_index, graph._rows(), graph.indices, "Rebuild it with PyG's Batch.")
        ids = np.arange(graph.num_nodes) - np.repeat(starts[:-1], sizes)
        changes = {"directed": directed, "ids": ids, "graph_index": graph_index, "num_graphs": len(sizes)}
        return cls._trusted(**graph.__getstate__() | changes)

    @classmethod
    def batch(cls, graphs: Iterable[Graph]) -> Self:
        """Batch graphs into one block-diagonal graph, as in PyG; nodes keep their ids, and so their walks."""
        if isinstance(graphs, Graph):
            raise ValueError("`graphs` must be a list of topomask.Graphs, but is one topomask.Graph. Pass [graph].")
        graphs = list(graphs)
        if not graphs:
            raise ValueError("`graphs` is empty. Pass at least one graph.")
        for number, graph in enumerate(graphs):
            if not isinstance(graph, Graph):
                raise ValueError(
                    f"`graphs` must be topomask.Graphs, but graphs[{number}] is a {type(graph).__name__}. Convert "
                    "PyG data with Graph.from_pyg."
                )
        if len({g.directed for g in graphs}) > 1:
            raise ValueError("`graphs` mixes directed and undirected graphs. Build all with the same `directed`.")
        nodes = np.cumsum([0] + [g.num_nodes for g in graphs])
        entries = np.cumsum([0] + [len(g.indices) for g in graphs])
        groups = np.cumsum([0] + [g.num_graphs for g in graphs])
        return cls._trusted(
            indptr=np.concatenate([[0], *(g.indptr[1:] + start for g, start in zip(graphs, entries, strict=False))]),
            indices=np.concatenate([g.indices + start for g, start in zip(graphs, nodes, strict=False)]),
            graph_index=np.concatenate([g.graph_index + start for g, start in zip(graphs, groups, strict=False)]),
            **{name: np.concatenate([getattr(g, name) for g in graphs]) for name in ("weights", "ids", "degrees")},
            directed=graphs[0].directed,
            num_graphs=int(groups[-1]),
            parts=tuple(part for graph in graphs for part in graph.parts or (graph,)),
        )

    @classmethod
    def _from_entries(cls, source: Array, target: Array, values: Array, num_nodes: int, directed: bool) -> Self:
        source, target, values = read.sort_entries(source, target, values)
        indptr = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=num_nodes))])
        degrees = read.row_totals(indptr, np.abs(values))
        if (node := first_true(np.isinf(degrees))) is not None:
            raise ValueError(f"The weights at node {node} overflow when summed. Scale them down.")
        arrays = {"indptr": indptr, "indices": target, "weights": values, "degrees": degrees}
        ids, graph_index = np.arange(num_nodes), np.zeros(num_nodes, dtype=np.int64)
        return cls._trusted(**arrays, ids=ids, graph_index=graph_index, directed=directed)

    @property
    def num_edges(self) -> int:
        """Number of edges E, counting undirected edges once."""
        if self.directed:
            return len(self.indices)
        loops = int(np.count_nonzero(self.indices == self._rows()))
        return (len(self.indices) + loops) // 2

    @cached_property
    def signed(self) -> bool:
        """Whether any weight is negative."""
        return bool((self.weights < 0).any())

    def adjacency(self, normalization: Normalization | None = None) -> sp.csr_array:
        r"""The weighted adjacency matrix W as a SciPy CSR matrix.

        Args:
            normalization: ``"sym"`` for :math:`D^{-1/2} A D^{-1/2}`, ``"row"`` for :math:`D^{-1} A`, ``"none"`` for
                :math:`A`, with :math:`D = \mathrm{diag}(s)`. Default: ``"sym"``, or ``"row"`` if directed.
        """
        normalization = self.check_normalization(normalization)
        values = self.weights.copy()
        if normalization != "none":
            scale = self.degrees[self._rows()]
            if normalization == "sym":
                scale = np.sqrt(scale) * np.sqrt(self.degrees[self.indices])
            values = values / scale
        return sp.csr_array((values, self.indices.copy(), self.indptr.copy()), shape=(self.num_nodes, self.num_nodes))

    def check_normalization(self, normalization: Normalization | None) -> Normalization:
        """Return the normalisation to use, or raise a ValueError if this graph does not allow it."""
        if normalization is None:
            return "row" if self.directed else "sym"
        check_choice("normalization", normalization, get_args(Normalization))
        if normalization == "sym" and self.directed:
            raise ValueError(
                "`normalization` must be 'row' or 'none' for a directed graph, but is 'sym', which divides by zero at "
                "nodes without out-edges. Change it, or build the graph undirected."
            )
        return normalization

    def to_scipy(self) -> sp.csr_array:
        """The adjacency matrix A as a SciPy CSR matrix."""
        return self.adjacency("none")

    def to_edge_index(self) -> tuple[Tensor, Tensor]:
        """Return edges [2, nnz] and weights [nnz] as in PyG, with both directions of undirected edges."""
        return torch.from_numpy(np.stack([self._rows(), self.indices])), torch.from_numpy(self.weights.copy())

    def neighborhood(self, nodes: Any, num_hops: int) -> Self:
        """Return the subgraph that walks of ``num_hops`` steps from ``nodes`` can reach.

        Nodes keep their ids and degrees, so features sampled on the subgraph are rows of the features of the whole
        graph, bit for bit. Use this to sample walks on a graph that is too big for one machine.
        """
        from scipy.sparse.csgraph import dijkstra

        check_integer("num_hops", num_hops, 0)
        start = check_nodes(nodes, self.num_nodes, "nodes").numpy()
        if not len(start):
            raise ValueError("`nodes` is empty. Pass at least one node.")
        shape = (self.num_nodes, self.num_nodes)
        pattern = sp.csr_array((np.ones(len(self.indices)), self.indices, self.indptr), shape=shape)
        # A step of a walk follows an edge from its row to its column.
        part = np.flatnonzero(np.isfinite(dijkstra(pattern, indices=start, limit=num_hops, min_only=True)))
        block = sp.csr_array((self.weights, self.indices, self.indptr), shape=shape)[part][:, part]
        block.sort_indices()
        graphs, graph_index = np.unique(self.graph_index[part], return_inverse=True)
        arrays = {"indptr": block.indptr.astype(np.int64), "indices": block.indices.astype(np.int64)}
        arrays |= {"weights": block.data, "ids": self.ids[part], "degrees": self.degrees[part]}
        groups = {"graph_index": graph_index.reshape(-1), "num_graphs": len(graphs)}
        return self._trusted(**arrays, **groups, directed=self.directed)

    @cached_property
    def _tensors(self) -> GraphTensors:
        """The arrays that the walk sampler needs, as private CPU tensors."""
        with plainly(), torch.device("cpu"):
            row_ptr, weights = torch.tensor(self.indptr), torch.tensor(self.weights)
            return GraphTensors.trusted(
                row_ptr=row_ptr,
                columns=torch.tensor(self.indices).to(segments.index_type(self.num_nodes)),
                cumulative=segments.cumulative_sum(weights.abs(), row_ptr),
                signs=torch.sign(weights) if self.signed else None,
                degrees=torch.tensor(self.degrees),
                ids=torch.tensor(self.ids),
                unit_weights=bool((self.weights == 1).all()),
            )

    def matrix(
        self,
        normalization: Normalization | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> SparseMatrix:
        """The weighted adjacency matrix W for products in torch, cached; see :meth:`adjacency`.

        Example:
            >>> import torch, topomask as tm
            >>> tm.path_graph(3).matrix("row").multiply(torch.tensor([[1.0], [0.0], [3.0]]))
            tensor([[0.],
                    [2.],
                    [0.]])
        """
        self.check_normalization(normalization)
        return find_record(self, MATRICES[normalization], torch.device(device), dtype)

    def groups_on(self, device: torch.device) -> Tensor | None:
        """``graph_index`` as a tensor, [N]; None if this is a single graph."""
        return None if self.num_graphs == 1 else find_record(self, GROUPS, device, torch.float32)

    @cached_property
    def node_groups(self) -> Tensor:
        """An order of the nodes that puts close ones next to each other, [N]; on the CPU, for compiled kernels."""
        from topomask.ops.tiles.layout import order_nodes

        return order_nodes(self._tensors.row_ptr, self._tensors.columns)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of nodes, edges and weights that identifies the graph."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(b"directed" if self.directed else b"undirected")
        for array in (self.indptr, self.indices, self.weights, self.ids, self.graph_index):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def _rows(self) -> Array:
        return np.repeat(np.arange(self.num_nodes), np.diff(self.indptr))

    def _symmetrized(self, name: str, add: str, merge: str) -> Self:
        """Make both directions of each edge equal; raise a ValueError if they differ by more than rounding."""
        mean = read.symmetrize(self.to_scipy(), name, add, merge)
        return self if mean is None else self._from_entries(mean.row, mean.col, mean.data, self.num_nodes, False)

    def __repr__(self) -> str:
        parts = [f"num_nodes={self.num_nodes}", f"num_edges={self.num_edges}"]
        parts += ["directed=True"] * self.directed + ["signed=True"] * self.signed
        parts += [f"num_graphs={self.num_graphs}"] * (self.num_graphs > 1)
        return f"Graph({', '.join(parts)})"
