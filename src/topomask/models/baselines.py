"""Graph networks of PyG as baselines."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from topomask.attention.inputs import check_features
from topomask.graph import Graph
from topomask.graph.records import Recipe, find_record
from topomask.nn import MLP, GraphReadout, SparseRows
from topomask.nn.dropout import Dropout, drop
from topomask.nn.graph_convolution import NEIGHBOR_SUMS
from topomask.nn.readout import Readout
from topomask.nn.sparse_rows import apply_linear, drop_features
from topomask.support.checks import check_choice, check_probabilities, check_sizes
from topomask.support.config import ModelConfig
from topomask.support.imports import need

Layer = Literal["gcn", "gat", "sgc", "gin"]
_WEIGHTED = ("gcn", "sgc")
# By default, PyG's LayerNorm normalises over all nodes, even of different graphs.
_NORMS: dict[str, dict[str, Any]] = {
    "none": {"norm": None},
    "batch": {"norm": "BatchNorm"},
    "layer": {"norm": "LayerNorm", "norm_kwargs": {"mode": "node"}},
}


class GraphNetwork(nn.Module):
    """GCN, GAT, SGC or GIN of PyG, as published: if it classifies nodes, the last layer computes the logits.

    ``"gcn"`` and ``"sgc"`` use edge weights; ``"gat"`` and ``"gin"`` raise an error if the graph has any. On a directed
    graph, a node receives messages from the nodes that its edges point to, as everywhere in this library.

    Args:
        in_features: Number of features of a node.
        num_classes: Number of classes.
        layer: ``"gcn"``, ``"gat"``, ``"sgc"`` (one linear layer after ``depth`` hops) or ``"gin"``.
        dim: Width of the hidden layers; for ``"gat"``, of all heads together.
        depth: Number of layers, or of hops.
        num_heads: Number of heads of ``"gat"``.
        readout: ``"node"``, ``"mean"``, ``"sum"`` or ``"attention"``; see :class:`topomask.nn.GraphReadout`.
        norm: Norm between layers, ``"none"``, ``"batch"`` or ``"layer"``. A single layer, such as ``"sgc"``, has none.
        dropout: Dropout probability between layers, and of the readout of a graph; for ``"gat"``, also of edges, unless
            it is residual. Must be 0 for a single layer that classifies nodes, such as ``"sgc"``.
        input_dropout: Dropout probability of the input features.
        encoder: Start with a linear layer, for sparse features with many columns, which otherwise are made dense.
        residual: Start with a linear layer, and give each layer a norm, an MLP and a residual connection, as in
            Platonov et al. (2023). For ``"gcn"`` and ``"gat"`` with norm ``"layer"`` only.

    Example:
        >>> import torch, topomask as tm
        >>> model = tm.models.GraphNetwork(4, 3, "gcn", dim=16)
        >>> model(torch.randn(5, 4), tm.cycle_graph(5)).shape
        torch.Size([5, 3])

    References:
        Kipf and Welling (2017); Velickovic et al. (2018); Wu et al. (2019); Xu et al. (2019); Platonov et al. (2023).
    """

    encoder: nn.Linear | None
    head: nn.Linear | None

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        layer: Layer = "gcn",
        dim: int = 64,
        depth: int = 2,
        num_heads: int = 8,
        readout: Readout = "node",
        norm: str = "none",
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        encoder: bool = False,
        residual: bool = False,
    ) -> None:
        super().__init__()
        check_choice("layer", layer, get_args(Layer))
        check_choice("norm", norm, _NORMS)
        check_sizes(in_features=in_features, num_classes=num_classes, dim=dim, depth=depth, num_heads=num_heads)
        check_probabilities(dropout=dropout, input_dropout=input_dropout)
        if residual and (layer not in ("gcn", "gat") or norm != "layer"):
            raise ValueError(
                f"`residual` is for layers 'gcn' and 'gat' with norm 'layer', but these are {layer!r} and {norm!r}."
            )
        if residual and layer == "gat" and dim % num_heads:
            raise ValueError(f"`dim` must be a multiple of `num_heads`={num_heads}, but is {dim}.")
        if layer == "sgc" or (depth == 1 and readout == "node" and not residual):
            _check_one_layer(layer, norm, dropout, readout)
        self.in_features, self.layer, self.dropout, self.input_dropout = in_features, layer, dropout, input_dropout
        self.encoder = nn.Linear(in_features, dim) if encoder or residual else None
        width = dim if encoder else in_features
        out = num_classes if readout == "node" else None
        if residual:
            self.network: nn.Module = _ResidualNetwork(layer, dim, depth, out, dropout, num_heads)
        else:
            self.network = _network(layer, width, dim, depth, out, dropout, norm, num_heads)
        self.readout = GraphReadout(readout, dim)
        self.head = None if readout == "node" else nn.Linear(dim, num_classes)

    def forward(self, x: Tensor | SparseRows, graph: Graph) -> Tensor:
        """Compute logits, [N, num_classes] or [num_graphs, num_classes]."""
        check_features(x, graph, self.in_features)
        x = drop_features(x, self.input_dropout, self.training)
        if self.encoder is not None:
            x = F.relu(apply_linear(self.encoder, x))
        tokens = x.to_dense().to(next(self.parameters()).dtype) if isinstance(x, SparseRows) else x
        edge_index, weights = find_record(graph, _EDGES, tokens.device, tokens.dtype)
        if weights is not None and self.layer not in _WEIGHTED:
            raise ValueError(
                f"`graph` has weights, which layer {self.layer!r} does not use. Use one of {_WEIGHTED}, or build the "
                "graph without weights."
            )
        if weights is not None and bool((weights < 0).any()):
            raise ValueError(
                f"`graph` has negative weights, but layer {self.layer!r} takes square roots of sums of weights. Build "
                "it with positive weights."
            )
        if self.layer == "gcn":
            edge_index, weights = _normalized(graph, tokens)
        elif weights is not None:
            weights = weights.to(tokens.dtype)
        tokens = self.network(tokens, edge_index, **({} if weights is None else {"edge_weight": weights}))
        if self.head is None:
            return tokens
        return self.head(drop(self.readout(tokens, graph), self.dropout, self.training))


class _ResidualNetwork(nn.Module):
    """Layers of PyG, each with a norm before it, an MLP after it, and a residual connection."""

    def __init__(self, layer: Layer, dim: int, depth: int, out: int | None, dropout: float, num_heads: int) -> None:
        super().__init__()
        pyg = need("torch_geometric.nn", f"The baseline {layer!r}")
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.layers = nn.ModuleList(
            pyg.GCNConv(dim, dim, normalize=False) if layer == "gcn" else pyg.GATConv(dim, dim // num_heads, num_heads)
            for _ in range(depth)
        )
        self.perceptrons = nn.ModuleList(MLP(dim, 2 * dim) for _ in range(depth))
        self.dropout = Dropout(dropout)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Identity() if out is None else nn.Linear(dim, out)

    def forward(self, x: Tensor, edge_index: Tensor, **weighted: Tensor) -> Tensor:
        """Compute tokens, or logits, of all nodes."""
        for norm, layer, mlp in zip(self.norms, self.layers, self.perceptrons, strict=True):
            x = x + self.dropout(mlp(self.dropout(layer(norm(x), edge_index, **weighted))))
        return self.head(self.norm(x))


@dataclass(frozen=True)
class GraphNetworkConfig(ModelConfig[GraphNetwork]):
    """The arguments of :class:`GraphNetwork` as data. Recipes set features and classes that are None."""

    in_features: int | None = None
    num_classes: int | None = None
    layer: Layer = "gcn"
    dim: int = 64
    depth: int = 2
    num_heads: int = 8
    readout: Readout = "node"
    norm: Literal["none", "batch", "layer"] = "none"
    dropout: float = 0.0
    input_dropout: float = 0.0
    encoder: bool = False
    residual: bool = False


def _check_one_layer(layer: str, norm: str, dropout: float, readout: str) -> None:
    """Raise a ValueError for options that act between layers if there is only one."""
    what = "layer 'sgc' is one linear layer" if layer == "sgc" else "`depth` is 1"
    # GIN also has norms in its MLP.
    if norm != "none" and layer != "gin":
        raise ValueError(f"`norm` is {norm!r}, but {what}, and norms act between layers. Leave it out.")
    # GAT also drops edges.
    if dropout and readout == "node" and layer != "gat":
        raise ValueError(
            f"`dropout` is {dropout}, but {what}, and it acts between layers. Leave it out, or use `input_dropout`."
        )


def _network(
    layer: Layer, width: int, dim: int, depth: int, out: int | None, dropout: float, norm: str, num_heads: int
) -> nn.Module:
    pyg = need("torch_geometric.nn", f"The baseline {layer!r}")
    if layer == "sgc":
        return pyg.SGConv(width, dim if out is None else out, K=depth)
    common: dict[str, Any] = {"out_channels": out, "dropout": dropout, **_NORMS[norm]}
    if out is None:
        # With an activation after the last layer; GIN reads out all layers, as published.
        common["jk"] = "cat" if layer == "gin" else "last"
    if layer == "gcn":
        return pyg.GCN(width, dim, depth, **common, normalize=False)
    if layer == "gin":
        return pyg.GIN(width, dim, depth, **common, train_eps=True)
    # The activation of the paper.
    return pyg.GAT(width, dim, depth, **common, heads=num_heads, act="elu")


@dataclass(frozen=True)
class _EdgesRecipe(Recipe):
    """Edges in PyG's format, and their weights unless all are 1."""

    def make(self, graph: Graph, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:  # noqa: ARG002
        edge_index, weights = graph.to_edge_index()
        # PyG sends messages along edges, this library against them.
        edge_index = edge_index.flip(0) if graph.directed else edge_index
        return edge_index.to(device), None if bool((weights == 1).all()) else weights.to(device)


@dataclass(frozen=True)
class _GcnRecipe(Recipe):
    """The normalised matrix of GCN as a sparse tensor, with which PyG is fastest."""

    by_precision = True

    def make(self, graph: Graph, device: torch.device, dtype: torch.dtype) -> Tensor:
        sums = find_record(graph, NEIGHBOR_SUMS["gcn"], device, dtype)
        parts = sums.pattern.row_ptr, sums.pattern.columns.long(), sums.values.to(dtype)
        # The warning that CSR is in beta.
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            return torch.sparse_csr_tensor(*parts, size=sums.pattern.shape)


_EDGES, _GCN = _EdgesRecipe().shared(), _GcnRecipe().shared()


def _normalized(graph: Graph, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
    """The normalised edges of GCN as a sparse matrix, or in half precision, which it does not support, with weights."""
    matrix = find_record(graph, _GCN, tokens.device, tokens.dtype)
    if not torch.is_autocast_enabled(tokens.device.type) and tokens.dtype in (torch.float32, torch.float64):
        return matrix, None
    return matrix.to_sparse_coo().indices().flip(0), matrix.values().to(tokens.dtype)
