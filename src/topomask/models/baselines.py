"""Graph networks to compare with, through PyG."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from topomask.graph import Graph
from topomask.models.graph_transformer import check_features, check_probabilities, check_sizes
from topomask.nn import MLP, GraphReadout, SparseRows
from topomask.nn.dropout import Dropout, drop
from topomask.nn.readout import Readout
from topomask.nn.sparse_rows import apply_linear, drop_features
from topomask.support.imports import need

Layer = Literal["gcn", "gat", "sgc", "gin"]
# Edges as PyG has them, with weights where they are not all 1, and what GCN makes of them; they go when the graph goes.
_KEPT: WeakKeyDictionary[Graph, tuple[Tensor, Tensor | None]] = WeakKeyDictionary()
# For every device and precision that was asked for; as a matrix, and as edges and weights.
_NORMALIZED: WeakKeyDictionary[Graph, tuple[dict[tuple[torch.device, torch.dtype], Tensor], Tensor, Tensor, Tensor]] = (
    WeakKeyDictionary()
)
_WEIGHTED = ("gcn", "sgc")
# By default PyG's LayerNorm runs over all nodes, those of other graphs too.
_NORMS: dict[str, dict[str, Any]] = {
    "none": {"norm": None},
    "batch": {"norm": "BatchNorm"},
    "layer": {"norm": "LayerNorm", "norm_kwargs": {"mode": "node"}},
}


class GraphNetwork(nn.Module):
    """GCN, GAT, SGC or GIN of PyG, as published: for nodes, the last layer gives the classes.

    ``"gcn"`` and ``"sgc"`` take weights of edges; ``"gat"`` and ``"gin"`` have no use for them, and refuse a graph that
    has any. On a directed graph a node hears the nodes that its edges lead to, as in all of this library.

    Args:
        in_features: Features of a node.
        num_classes: Classes.
        layer: ``"gcn"``, ``"gat"``, ``"sgc"`` (one linear layer after ``depth`` hops) or ``"gin"``.
        dim: Width of the hidden layers; for ``"gat"``, of all heads together.
        depth: Layers, or hops.
        num_heads: Heads of ``"gat"``.
        readout: ``"node"``, ``"mean"``, ``"sum"`` or ``"attention"``; see :class:`topomask.nn.GraphReadout`.
        norm: ``"none"``, ``"batch"`` or ``"layer"``, between layers; ``"none"`` for one layer, as in ``"sgc"``.
        dropout: Probability to drop a number between layers, and of what is read out of a graph; for ``"gat"``, also an
            edge, unless it is residual. 0 for one layer that classifies nodes, as in ``"sgc"``.
        input_dropout: Probability to drop an input feature.
        encoder: Put a linear layer in front, for sparse features with many columns. Without it these are made dense.
        residual: A linear layer in front, and every layer with a norm before and a perceptron behind it, beside a
            residual, as in Platonov et al. (2023). ``"gcn"`` and ``"gat"`` only; ``norm`` is then ``"layer"``.

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
        if layer not in get_args(Layer):
            raise ValueError(f"`layer` must be one of {get_args(Layer)}, but is {layer!r}.")
        if norm not in _NORMS:
            raise ValueError(f"`norm` must be one of {tuple(_NORMS)}, but is {norm!r}.")
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
        """Logits of the classes, [N, num_classes] or [num_graphs, num_classes]."""
        check_features(x, graph, self.in_features)
        x = drop_features(x, self.input_dropout, self.training)
        if self.encoder is not None:
            x = F.relu(apply_linear(self.encoder, x))
        tokens = x.to_dense().to(next(self.parameters()).dtype) if isinstance(x, SparseRows) else x
        edge_index, weights = _edges_of(graph, tokens)
        if weights is not None and self.layer not in _WEIGHTED:
            raise ValueError(
                f"`graph` has weights, which layer {self.layer!r} has no use for. Take one of {_WEIGHTED}, or build "
                "the graph without weights."
            )
        if weights is not None and bool((weights < 0).any()):
            raise ValueError(
                f"`graph` has negative weights, but layer {self.layer!r} takes roots of sums of them. Build it with "
                "weights that are positive."
            )
        if self.layer == "gcn":
            edge_index, weights = _normalized(graph, tokens)
        tokens = self.network(tokens, edge_index, **({} if weights is None else {"edge_weight": weights}))
        if self.head is None:
            return tokens
        return self.head(drop(self.readout(tokens, graph), self.dropout, self.training))


class _ResidualNetwork(nn.Module):
    """Layers of PyG, each with a norm before it, a perceptron behind it, and a residual beside both."""

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
        """Tokens, or classes, of all nodes."""
        for norm, layer, perceptron in zip(self.norms, self.layers, self.perceptrons, strict=True):
            x = x + self.dropout(perceptron(self.dropout(layer(norm(x), edge_index, **weighted))))
        return self.head(self.norm(x))


@dataclass(frozen=True)
class GraphNetworkConfig:
    """The arguments of :class:`GraphNetwork` as data. What is None is taken from the data.

    Attributes:
        in_features: Features of a node.
        num_classes: Classes.
        layer: "gcn", "gat", "sgc" or "gin".
        dim: Width of the hidden layers.
        depth: Layers, or hops.
        num_heads: Heads of "gat".
        readout: "node", "mean", "sum" or "attention".
        norm: "none", "batch" or "layer".
        dropout: Probability to drop a number between layers.
        input_dropout: Probability to drop an input feature.
        encoder: Put a linear layer in front.
        residual: Every layer with a norm, a perceptron and a residual.
    """

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

    def build(self) -> GraphNetwork:
        """The model."""
        given = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        for name in ("in_features", "num_classes"):
            if given[name] is None:
                raise ValueError(f"`{name}` is None. Set it, or let an experiment take it from its data.")
        return GraphNetwork(**given)


def _check_one_layer(layer: str, norm: str, dropout: float, readout: str) -> None:
    """A ValueError for what would go between layers, where there is one."""
    what = "layer 'sgc' is one linear layer" if layer == "sgc" else "`depth` is 1"
    # GIN has it in its perceptron, too.
    if norm != "none" and layer != "gin":
        raise ValueError(f"`norm` is {norm!r}, but {what}, with no place for it. Leave it out.")
    # GAT also drops edges.
    if dropout and readout == "node" and layer != "gat":
        raise ValueError(
            f"`dropout` is {dropout}, but {what}, with no place for it. Leave it out, or take `input_dropout`."
        )


def _network(
    layer: Layer,
    width: int,
    dim: int,
    depth: int,
    out: int | None,
    dropout: float,
    norm: str,
    num_heads: int,
) -> nn.Module:
    pyg = need("torch_geometric.nn", f"The baseline {layer!r}")
    if layer == "sgc":
        return pyg.SGConv(width, dim if out is None else out, K=depth)
    common: dict[str, Any] = {"out_channels": out, "dropout": dropout, **_NORMS[norm]}
    if out is None:
        # An activation after the last layer too; GIN looks at all layers, as published.
        common["jk"] = "cat" if layer == "gin" else "last"
    if layer == "gcn":
        return pyg.GCN(width, dim, depth, **common, normalize=False)
    if layer == "gin":
        return pyg.GIN(width, dim, depth, **common, train_eps=True)
    # The activation of the paper.
    return pyg.GAT(width, dim, depth, **common, heads=num_heads, act="elu")


def _edges_of(graph: Graph, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
    """Edges as PyG has them, and their weights, where there are any; for tokens of a device and precision."""
    if graph not in _KEPT:
        # Kept for training too, whatever mode asks for them first.
        with torch.inference_mode(False):
            edge_index, values = graph.to_edge_index()
            # PyG sends messages along edges; here a node hears the nodes that its edges lead to.
            edge_index = edge_index.flip(0) if graph.directed else edge_index
            _KEPT[graph] = edge_index, values if bool((values != 1).any()) else None
    edge_index, weights = _KEPT[graph]
    return edge_index.to(tokens.device), None if weights is None else weights.to(tokens)


def _normalized(graph: Graph, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
    """Edges as GCN weighs them, once for all layers and steps: as a sparse matrix, which is PyG's fast form.

    Products with that know no half precision: for it there are edges and weights.
    """
    if graph not in _NORMALIZED:
        conv = need("torch_geometric.nn.conv.gcn_conv", "The baseline 'gcn'")
        utils = need("torch_geometric.utils", "The baseline 'gcn'")
        with (
            torch.inference_mode(False),
            torch.sparse.check_sparse_tensor_invariants(),
            # That CSR is in beta.
            warnings.catch_warnings(action="ignore", category=UserWarning),
        ):
            # In double precision, for models of every precision.
            edge_index, weights = _edges_of(graph, tokens.new_empty(0, dtype=torch.float64, device="cpu"))
            edge_index, weights = conv.gcn_norm(edge_index, weights, graph.num_nodes, dtype=torch.float64)
            matrix = utils.to_torch_csr_tensor(edge_index.flip(0), weights, size=(graph.num_nodes,) * 2)
            _NORMALIZED[graph] = {}, matrix, edge_index, weights
    kept, matrix, edge_index, weights = _NORMALIZED[graph]
    device, dtype = tokens.device, tokens.dtype
    if torch.is_autocast_enabled(device.type) or dtype not in (torch.float32, torch.float64):
        return edge_index.to(device), weights.to(device, dtype)
    if (device, dtype) not in kept:
        with torch.inference_mode(False):
            kept[device, dtype] = matrix.to(device, dtype)
    return kept[device, dtype], None
