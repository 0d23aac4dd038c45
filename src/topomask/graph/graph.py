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

from topomask.graph.input import (
    Array,
    Duplicates,
    check_crossing,
    check_duplicates,
    check_nodes,
    edge_array,
    merge_edges,
    networkx_edges,
    node_count,
    row_totals,
    scipy_entries,
    sort_entries,
    starts_in_pyg,
    symmetrize,
    weight_array,
)
from topomask.graph.records import GROUPS, MATRICES, Records, SparseMatrix, find_record
from topomask.ops import segments
from topomask.ops.derived import plainly
from topomask.ops.sample_walks import GraphTensors

Normalization = Literal["sym", "row", "none"]


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    r"""A graph whose nodes are the tokens of a transformer.

    The adjacency matrix :math:`A` is kept as compressed sparse rows with ascending columns. Row :math:`i` holds the
    edges that leave node :math:`i`; an undirected edge stands in both rows. Build one with :meth:`from_edges`,
    :meth:`from_scipy`, :meth:`from_networkx`, :meth:`from_pyg`, :meth:`batch`, or a builder such as
    :func:`topomask.grid_graph`.

    Rules for edges that come in unusual shapes: an edge that is listed more than once, in either direction when the
    graph is undirected, is one edge, and its listed weights must agree, unless ``duplicates`` says what to make of
    them; a self-loop is one entry on the diagonal and counts once in the degree; an edge of weight zero is no edge.

    A graph does not change: its arrays are read-only. ``Graph(...)`` copies the arrays it is given, and checks them.

    Attributes:
        indptr: Row pointers, [N + 1], int64.
        indices: Columns, [nnz], int64.
        weights: Entries of A, [nnz], float64.
        directed: Whether A may be asymmetric.
        ids: The identity of every node for the random walks, [N]: its number in the graph it came from.
        degrees: :math:`s_i = \sum_j |a_{ij}|`, [N].
        graph_index: Which graph of a batch every node belongs to, [N], ascending.
        num_graphs: Number of graphs in the batch.
        parts: The graphs that :meth:`batch` was given, each of them, where there were any.
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
    # The graphs that this one is a batch of; what is computed of them is joined instead of computed again.
    parts: tuple[Graph, ...] = ()
    num_nodes: int = field(init=False)
    _records: Records = field(init=False)

    def __post_init__(self) -> None:
        # Builders do not come this way.
        from topomask.graph.validation import checked_fields

        given = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.init}
        self.__setstate__(checked_fields(**given))

    @classmethod
    def _trusted(cls, **arrays: Any) -> Self:
        """A graph of arrays that were just computed: neither checked nor copied."""
        graph = object.__new__(cls)
        graph.__setstate__({"num_graphs": 1, "parts": (), "num_nodes": len(arrays["indptr"]) - 1} | arrays)
        return graph

    def __getstate__(self) -> dict[str, Any]:
        """Without what is computed again, and without parts, which would travel twice."""
        state = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "_records"}
        return state | {"parts": ()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state | {"_records": Records(self)})
        self._freeze()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """The graph itself: it never changes."""
        return self

    def _freeze(self) -> None:
        for name in ("indptr", "indices", "weights", "ids", "degrees", "graph_index"):
            array = self.__dict__[name]
            array.flags.writeable = False
            # A view cannot be made writeable again.
            self.__dict__[name] = array.view()

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
            edges: Integer node numbers, [2, E] (PyG's order, and how a 2 x 2 input is read) or [E, 2]; NumPy, torch
                or nested lists.
            num_nodes: How many nodes there are. Default: the largest number plus one.
            weights: One weight per edge, [E]. Default: ones.
            directed: Keep the direction of edges. Otherwise (i, j) and (j, i) are the same edge.
            signed: Allow negative weights.
            duplicates: What becomes of the weights of an edge that is listed more than once: their ``"sum"``, their
                ``"mean"``, or the one listed ``"first"``. Where the graph is undirected, (i, j) and (j, i) are listings
                of the same edge, so a list that has every edge in both directions doubles its weights by ``"sum"``;
                :meth:`from_pyg` merges each direction for itself. Default: they must agree, and count once.
        """
        check_duplicates(duplicates)
        pairs = edge_array(edges)
        num_edges = pairs.shape[1]
        values = np.ones(num_edges) if weights is None else weight_array(weights, pairs, signed)
        num_nodes = node_count(pairs, num_nodes)
        if duplicates is not None:
            pairs, values = merge_edges(pairs, values, directed, duplicates)
        source, target = pairs
        if not directed:
            source, target = np.concatenate([source, target]), np.concatenate([target, source])
            values = np.concatenate([values, values])
        return cls._from_entries(source, target, values, num_nodes, directed)

    @classmethod
    def from_scipy(
        cls, matrix: Any, *, directed: bool = False, signed: bool = False, duplicates: Duplicates = "sum"
    ) -> Self:
        """Build a graph from a SciPy sparse adjacency matrix.

        Entries that are stored more than once are summed, as SciPy does, unless ``duplicates`` is ``"mean"`` or
        ``"first"``.
        """
        check_duplicates(duplicates)
        pairs, values = scipy_entries(matrix, summed=duplicates == "sum")
        pairs, values = merge_edges(pairs, weight_array(values, pairs, signed), True, duplicates)
        graph = cls._from_entries(pairs[0], pairs[1], values, node_count(pairs, matrix.shape[0]), directed)
        fix = "symmetrise it with (A + A.T) / 2"
        return graph if directed else graph._symmetrized("`matrix`", fix, fix)

    @classmethod
    def from_networkx(
        cls, graph: Any, *, weight: str = "weight", signed: bool = False, duplicates: Duplicates = "sum"
    ) -> Self:
        """Build a graph from a NetworkX graph; node k is the k-th node that NetworkX lists.

        Edges without the attribute ``weight`` count 1, parallel edges of a multigraph are summed unless ``duplicates``
        is ``"mean"`` or ``"first"``, and the result is directed when the NetworkX graph is.
        """
        check_duplicates(duplicates)
        import networkx as nx

        if graph.number_of_nodes() == 0:
            raise ValueError("`graph` has no nodes. A topomask graph needs at least one node.")
        if duplicates != "sum":
            options: dict[str, Any] = {"directed": graph.is_directed(), "signed": signed, "duplicates": duplicates}
            return cls.from_edges(*networkx_edges(graph, weight), **options)
        matrix = nx.to_scipy_sparse_array(graph, weight=weight, dtype=np.float64, format="csr")
        return cls.from_scipy(matrix, directed=graph.is_directed(), signed=signed)

    @classmethod
    def from_pyg(
        cls, data: Any, *, directed: bool = False, signed: bool = False, duplicates: Duplicates | None = None
    ) -> Self:
        """Build a graph from a PyG ``Data`` or ``Batch``; ``edge_weight`` is used where present.

        A ``Batch``, or data with ``batch``, stays a batch: walks know which graph they are in. A node of a directed
        graph hears the nodes that its edges lead to, where PyG sends messages along edges: flip ``edge_index`` to have
        the same. Features of edges are not used. ``duplicates`` is that of :meth:`from_edges`; (i, j) and (j, i) are
        merged apart from each other, and must agree afterwards unless the graph is directed.
        """
        edge_index, weights = data.edge_index, getattr(data, "edge_weight", None)
        if edge_index is None:
            raise ValueError(
                "`data` has no `edge_index`. Turn `adj_t` with PyG's to_edge_index(); for a graph without edges, set "
                "torch.empty(2, 0).long()."
            )
        options: dict[str, Any] = {"directed": True, "signed": signed, "duplicates": duplicates}
        graph = cls.from_edges(edge_index, data.num_nodes, weights, **options)
        if not directed:
            fixes = "add the reverse edges with PyG's to_undirected() first", "take to_undirected(..., reduce='mean')"
            graph = graph._symmetrized("`edge_index`", *fixes)
        starts = starts_in_pyg(data, graph.num_nodes)
        sizes = np.diff(starts)
        graph_index = np.repeat(np.arange(len(sizes)), sizes)
        check_crossing(graph_index, graph._rows(), graph.indices, "Rebuild it with PyG's Batch.")
        return cls._trusted(
            indptr=graph.indptr,
            indices=graph.indices,
            weights=graph.weights,
            directed=directed,
            ids=np.arange(graph.num_nodes) - np.repeat(starts[:-1], sizes),
            degrees=graph.degrees,
            graph_index=graph_index,
            num_graphs=len(sizes),
        )

    @classmethod
    def batch(cls, graphs: Iterable[Graph]) -> Self:
        """Put graphs side by side as one block-diagonal graph, as PyG does.

        Every node keeps its id, so the walks of the batch are the walks of its graphs.
        """
        graphs = list(graphs)
        if not graphs:
            raise ValueError("`graphs` is empty. Pass at least one graph.")
        for number, graph in enumerate(graphs):
            if not isinstance(graph, Graph):
                raise ValueError(
                    f"`graphs` must be topomask.Graphs, but number {number} is a {type(graph).__name__}. Turn PyG's "
                    "data with Graph.from_pyg."
                )
        if len({g.directed for g in graphs}) > 1:
            raise ValueError(
                "`graphs` mixes directed and undirected graphs. Build all of them with the same `directed`."
            )
        nodes = np.cumsum([0] + [g.num_nodes for g in graphs])
        entries = np.cumsum([0] + [len(g.indices) for g in graphs])
        groups = np.cumsum([0] + [g.num_graphs for g in graphs])
        return cls._trusted(
            indptr=np.concatenate([[0], *(g.indptr[1:] + start for g, start in zip(graphs, entries, strict=False))]),
            indices=np.concatenate([g.indices + start for g, start in zip(graphs, nodes, strict=False)]),
            weights=np.concatenate([g.weights for g in graphs]),
            directed=graphs[0].directed,
            ids=np.concatenate([g.ids for g in graphs]),
            degrees=np.concatenate([g.degrees for g in graphs]),
            graph_index=np.concatenate([g.graph_index + start for g, start in zip(graphs, groups, strict=False)]),
            num_graphs=int(groups[-1]),
            parts=tuple(part for graph in graphs for part in graph.parts or (graph,)),
        )

    @classmethod
    def _from_entries(cls, source: Array, target: Array, values: Array, num_nodes: int, directed: bool) -> Self:
        source, target, values = sort_entries(source, target, values)
        indptr = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=num_nodes))])
        degrees = row_totals(indptr, np.abs(values))
        too_large = np.flatnonzero(np.isinf(degrees))
        if too_large.size:
            raise ValueError(f"The weights at node {too_large[0]} overflow when they are added up. Scale them down.")
        return cls._trusted(
            indptr=indptr,
            indices=target,
            weights=values,
            directed=directed,
            ids=np.arange(num_nodes),
            degrees=degrees,
            graph_index=np.zeros(num_nodes, dtype=np.int64),
        )

    @property
    def num_edges(self) -> int:
        """Number of edges E; an undirected edge counts once."""
        if self.directed:
            return len(self.indices)
        loops = int(np.count_nonzero(self.indices == self._rows()))
        return (len(self.indices) + loops) // 2

    @cached_property
    def signed(self) -> bool:
        """Whether any weight is negative."""
        return bool((self.weights < 0).any())

    @property
    def default_normalization(self) -> Normalization:
        """``"sym"`` for undirected graphs, ``"row"`` for directed ones."""
        return "row" if self.directed else "sym"

    def adjacency(self, normalization: Normalization | None = None) -> sp.csr_array:
        r"""The weighted adjacency matrix W as a SciPy CSR matrix.

        Args:
            normalization: ``"sym"`` for :math:`D^{-1/2} A D^{-1/2}`, ``"row"`` for :math:`D^{-1} A`, ``"none"`` for
                :math:`A`, with :math:`D = \mathrm{diag}(s)`. Default: ``"sym"``, or ``"row"`` if directed.
        """
        normalization = self.check_normalization(normalization)
        values = self.weights.copy()
        if normalization != "none":
            row = self._rows()
            scale = self.degrees[row]
            if normalization == "sym":
                scale = np.sqrt(scale) * np.sqrt(self.degrees[self.indices])
            values = values / scale
        return sp.csr_array((values, self.indices.copy(), self.indptr.copy()), shape=(self.num_nodes, self.num_nodes))

    def check_normalization(self, normalization: Normalization | None) -> Normalization:
        """The normalisation to use, or a ValueError if this graph does not allow it."""
        if normalization is None:
            return self.default_normalization
        if normalization not in get_args(Normalization):
            raise ValueError(
                f"`normalization` must be one of {get_args(Normalization)}, but is {normalization!r}. "
                "Leave it out for the graph's default."
            )
        if normalization == "sym" and self.directed:
            raise ValueError(
                "`normalization` is 'sym', but the graph is directed, and a node without out-edges has degree zero. "
                "Use 'row' or 'none', or build the graph undirected."
            )
        return normalization

    def to_scipy(self) -> sp.csr_array:
        """The adjacency matrix A as a SciPy CSR matrix."""
        return self.adjacency("none")

    def to_edge_index(self) -> tuple[Tensor, Tensor]:
        """Edges [2, nnz] and weights [nnz] as PyG has them: an undirected edge stands there in both directions."""
        return torch.from_numpy(np.stack([self._rows(), self.indices])), torch.from_numpy(self.weights.copy())

    def neighborhood(self, nodes: Any, num_hops: int) -> Self:
        """The part of the graph that walks of ``num_hops`` steps from ``nodes`` can see.

        Nodes keep the ids and the degrees they have here, so features sampled on the part are rows of the features of
        the whole, bit for bit. This is how walks run on a graph that is too big for one machine.
        """
        if isinstance(num_hops, bool) or not isinstance(num_hops, (int, np.integer)) or num_hops < 0:
            raise ValueError(f"`num_hops` must be an integer of at least 0, but is {num_hops!r}.")
        seen = np.zeros(self.num_nodes, dtype=bool)
        frontier = check_nodes(nodes, self.num_nodes, "nodes").numpy()
        if not len(frontier):
            raise ValueError("`nodes` is empty. Pass at least one node.")
        seen[frontier] = True
        shape = (self.num_nodes, self.num_nodes)
        pattern = sp.csr_array((np.ones(len(self.indices), dtype=bool), self.indices, self.indptr), shape=shape)
        for _ in range(num_hops):
            reached = np.unique(pattern[frontier].indices) if len(frontier) else frontier
            frontier = reached[~seen[reached]]
            seen[frontier] = True
        part = np.flatnonzero(seen)
        block = sp.csr_array((self.weights, self.indices, self.indptr), shape=shape)[part][:, part]
        block.sort_indices()
        graphs, graph_index = np.unique(self.graph_index[part], return_inverse=True)
        return self._trusted(
            indptr=block.indptr.astype(np.int64),
            indices=block.indices.astype(np.int64),
            weights=block.data,
            directed=self.directed,
            ids=self.ids[part],
            degrees=self.degrees[part],
            graph_index=graph_index.reshape(-1),
            num_graphs=len(graphs),
        )

    @cached_property
    def _tensors(self) -> GraphTensors:
        """The arrays a walk sampler needs, as CPU tensors that nobody else has."""
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
        """The weighted adjacency matrix W for products in torch, made once; see :meth:`adjacency`.

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
        """Which graph of a batch every node belongs to, as a tensor, [N]; None for one graph."""
        return None if self.num_graphs == 1 else find_record(self, GROUPS, device, torch.float32)

    @cached_property
    def node_groups(self) -> Tensor:
        """The nodes, those that are close to each other next to each other, [N]; on the CPU, for compiled kernels."""
        from topomask.ops.tiles.layout import order_nodes

        return order_nodes(self._tensors.row_ptr, self._tensors.columns)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of nodes, edges and weights, to recognise the same graph again."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(b"directed" if self.directed else b"undirected")
        for array in (self.indptr, self.indices, self.weights, self.ids, self.graph_index):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def _rows(self) -> Array:
        return np.repeat(np.arange(self.num_nodes), np.diff(self.indptr))

    def _symmetrized(self, what: str, add: str, join: str) -> Self:
        """The same with equal weights of both directions; a ValueError where they differ by more than rounding."""
        mean = symmetrize(self.to_scipy(), what, add, join)
        return self if mean is None else self._from_entries(mean.row, mean.col, mean.data, self.num_nodes, False)

    def __repr__(self) -> str:
        parts = [f"num_nodes={self.num_nodes}", f"num_edges={self.num_edges}"]
        parts += ["directed=True"] * self.directed + ["signed=True"] * self.signed
        parts += [f"num_graphs={self.num_graphs}"] * (self.num_graphs > 1)
        return f"Graph({', '.join(parts)})"
