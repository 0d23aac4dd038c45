"""Graphs: a transformer whose nodes know the graph they live on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

from torch import Tensor, nn

from topomask.attention.inputs import FeatureMap
from topomask.graph import Graph
from topomask.masks.mask import Mask
from topomask.masks.operator import Normalizer, Operator
from topomask.models.graph_masks import GraphMaskOptions, MaskFactory, layer_masks
from topomask.nn import MLP, GraphConvolution, GraphReadout, MaskedAttention, SparseRows
from topomask.nn.attention import Kind, checked_feature_map
from topomask.nn.dropout import Dropout
from topomask.nn.readout import Readout
from topomask.nn.sparse_rows import apply_linear, drop_features

Local = Literal["none", "gcn", "sum"]
Norm = Literal["layer", "batch", "none"]
HeadNorm = Literal["batch"]
_LEAVE_OUT = "Take larger batches; where it is the last of an epoch, leave it out: GraphBatches(..., min_graphs=2)."


class GraphTransformer(nn.Module):
    """A classifier of graphs or of nodes: masked attention, a sum over neighbours beside it, perceptrons.

    A batch of graphs is one block-diagonal :class:`topomask.Graph`; nothing is padded, and nothing crosses between
    graphs. Masks have no graph of their own: they are on the graph of every call. Walks are sampled once per graph;
    those of a batch are joined from the walks of its graphs, which come again in other batches.

    Args:
        in_features: Features of a node.
        num_classes: Classes.
        dim: Width of the tokens.
        depth: Blocks.
        num_heads: Heads of attention, where there is any.
        mlp_ratio: Width of the perceptrons, in terms of ``dim``.
        mask: A name of :mod:`topomask.models.graph_masks`; a function that makes the mask of a layer, given the number
            of heads; or a mask that can be on any graph, shared by all layers.
        kind: ``"linear"`` or ``"softmax"`` attention. This, ``attention_dropout``, ``feature_map`` and ``normalizer``
            are refused with mask ``"none"``, which is no attention.
        mask_options: What the name of the mask does not say: walks, seed.
        local: A sum over neighbours beside attention: ``"none"``, ``"gcn"`` or ``"sum"``, see
            :class:`topomask.nn.GraphConvolution`.
        readout: ``"node"`` to classify nodes, or ``"mean"``, ``"sum"`` or ``"attention"`` over the nodes of a graph.
        norm: ``"layer"``, ``"batch"`` or ``"none"``. ``"batch"`` is over the nodes of all graphs: where a batch is one
            graph, a mean or sum over its nodes tells nothing while the model trains.
        dropout: Probability to drop a number of what a branch adds, and of what the head sees.
        input_dropout: Probability to drop an input feature.
        attention_dropout: Probability to drop a pair; linear attention then goes over pairs.
        feature_map: Feature map of linear attention. Default: ``"relu"``.
        normalizer: What attention divides by. Default: that of the mask.
        head_dim: Width of a hidden layer of the head. Default: the head is linear, so that without attention and
            neighbours a class is decided by a sum over nodes.
        head_norm: ``"batch"`` for a norm of what is read out, over the graphs of a batch, which needs two of them. A
            sum over hundreds of nodes is so large that training without it first has to shrink the sum. Default: none.

    Example:
        >>> import torch, topomask as tm
        >>> graphs = [tm.cycle_graph(5), tm.path_graph(3)]
        >>> model = tm.models.GraphTransformer(4, 2, dim=16, depth=2, num_heads=2, readout="mean")
        >>> model(torch.randn(8, 4), tm.Graph.batch(graphs)).shape
        torch.Size([2, 2])

    References:
        Choromanski et al. (2022), GKAT; Rampasek et al. (2022), for a local branch beside attention.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        dim: int = 64,
        depth: int = 2,
        num_heads: int = 4,
        mlp_ratio: float = 2.0,
        mask: str | Mask | MaskFactory = "walk",
        kind: Kind = "linear",
        mask_options: GraphMaskOptions | None = None,
        local: Local = "none",
        readout: Readout = "node",
        norm: Norm = "layer",
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        attention_dropout: float = 0.0,
        feature_map: FeatureMap | None = None,
        normalizer: Normalizer | None = None,
        head_dim: int | None = None,
        head_norm: HeadNorm | None = None,
    ) -> None:
        super().__init__()
        hidden_dim = round(mlp_ratio * dim)
        check_sizes(in_features=in_features, num_classes=num_classes, dim=dim, depth=depth, num_heads=num_heads)
        check_sizes(**{"mlp_ratio * dim": hidden_dim}, head_dim=1 if head_dim is None else head_dim)
        if local not in get_args(Local):
            raise ValueError(f"`local` must be one of {get_args(Local)}, but is {local!r}.")
        if head_norm not in (None, *get_args(HeadNorm)):
            raise ValueError(f"`head_norm` must be 'batch' or None, but is {head_norm!r}.")
        if head_norm is not None and readout == "node":
            raise ValueError("`head_norm` is a norm over graphs, but readout='node' classifies nodes. Leave it out.")
        check_probabilities(dropout=dropout, input_dropout=input_dropout, attention_dropout=attention_dropout)
        norms = norm_factory(norm, dim)
        how: dict[str, Any] = {
            "kind": kind,
            "feature_map": feature_map,
            "normalizer": normalizer,
            "dropout": attention_dropout,
        }
        masks = layer_masks(mask, depth, num_heads, mask_options)
        if masks[0] is None:
            _check_no_attention(
                kind, feature_map=feature_map, normalizer=normalizer, attention_dropout=attention_dropout
            )
        self.in_features, self.input_dropout = in_features, input_dropout
        self.embedding = nn.Linear(in_features, dim)
        self.blocks = nn.ModuleList(
            GraphBlock(
                None if layer_mask is None else MaskedAttention(dim, num_heads, layer_mask, **how),
                None if local == "none" else GraphConvolution(dim, dim, local),
                MLP(dim, hidden_dim),
                norms,
                dropout,
            )
            for layer_mask in masks
        )
        self.norm = norms()
        self.readout = GraphReadout(readout, dim)
        self.head_norm = nn.Identity() if head_norm is None else nn.BatchNorm1d(dim)
        self.dropout = Dropout(dropout)
        self.head = _head(dim, head_dim, num_classes)

    def represent(self, x: Tensor | SparseRows, graph: Graph) -> Tensor:
        """One vector per graph, [G, C], or per node, [N, C]: what the head classifies."""
        check_features(x, graph, self.in_features)
        if self.training:
            _check_statistics("norm", self.norm, graph.num_nodes, "node", "Take larger batches, or norm='layer'.")
            _check_statistics("head_norm", self.head_norm, graph.num_graphs, "graph", _LEAVE_OUT)
        tokens = apply_linear(self.embedding, drop_features(x, self.input_dropout, self.training))
        for block in self.blocks:
            assert isinstance(block, GraphBlock)
            operator = None if block.attention is None else block.attention.mask.on(graph)
            tokens = block(tokens, graph, operator)
        return self.head_norm(self.readout(self.norm(tokens), graph))

    def forward(self, x: Tensor | SparseRows, graph: Graph) -> Tensor:
        """Logits of the classes.

        Args:
            x: Features of the nodes, [N, in_features], dense or sparse.
            graph: The graph, or a batch of graphs.

        Returns:
            [N, num_classes] for nodes, [num_graphs, num_classes] for graphs.
        """
        return self.head(self.dropout(self.represent(x, graph)))


class GraphBlock(nn.Module):
    """Attention and a sum over neighbours, side by side, then a perceptron; each beside a residual.

    Args:
        attention: Masked attention, or None.
        local: A sum over neighbours, or None.
        mlp: The perceptron.
        norms: Makes a norm.
        dropout: Probability to drop a number of what a branch adds.
    """

    attention: MaskedAttention | None
    local: GraphConvolution | None

    def __init__(
        self,
        attention: MaskedAttention | None,
        local: GraphConvolution | None,
        mlp: nn.Module,
        norms: Callable[[], nn.Module],
        dropout: float,
    ) -> None:
        super().__init__()
        # Parameters that nothing depends on would stop training in several processes.
        self.mixing_norm = nn.Identity() if attention is None and local is None else norms()
        self.attention, self.local = attention, local
        self.mlp_norm, self.mlp = norms(), mlp
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, graph: Graph, operator: Operator | None) -> Tensor:
        """Tokens to tokens, [N, C]; ``operator`` is the mask of the attention on the graph."""
        normed = self.mixing_norm(x)
        if self.attention is not None and operator is not None:
            x = x + self.dropout(self.attention.attend(normed, operator))
        if self.local is not None:
            x = x + self.dropout(self.local(normed, graph))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


@dataclass(frozen=True)
class GraphTransformerConfig:
    """The arguments of :class:`GraphTransformer` as data. Features and classes that are None are taken from the data.

    Attributes:
        in_features: Features of a node.
        num_classes: Classes.
        dim: Width of the tokens.
        depth: Blocks.
        num_heads: Heads.
        mlp_ratio: Width of the perceptrons, in terms of dim.
        mask: Name of the mask; "all" is attention without a mask, "none" is no attention.
        kind: "linear" or "softmax" attention.
        mask_options: What the name of the mask does not say.
        local: A sum over neighbours beside attention: "none", "gcn" or "sum".
        readout: "node", "mean", "sum" or "attention".
        norm: "layer", "batch" or "none".
        dropout: Probability to drop a number of what a branch adds.
        input_dropout: Probability to drop an input feature.
        attention_dropout: Probability to drop a pair.
        feature_map: Feature map of linear attention; none is "relu".
        normalizer: What attention divides by; default is that of the mask.
        head_dim: Width of a hidden layer of the head; none is a linear head.
        head_norm: "batch" for a norm of what is read out, over the graphs of a batch; none is no norm.
    """

    in_features: int | None = None
    num_classes: int | None = None
    dim: int = 64
    depth: int = 2
    num_heads: int = 4
    mlp_ratio: float = 2.0
    mask: str = "walk"
    kind: Kind = "linear"
    mask_options: GraphMaskOptions = field(default_factory=GraphMaskOptions)
    local: Local = "none"
    readout: Readout = "node"
    norm: Norm = "layer"
    dropout: float = 0.0
    input_dropout: float = 0.0
    attention_dropout: float = 0.0
    feature_map: str | None = None
    normalizer: Normalizer | None = None
    head_dim: int | None = None
    head_norm: HeadNorm | None = None

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """A config by name, with changes.

        Args:
            name: ``"grf"``, linear attention masked by graph random features; ``"grf-softmax"``, softmax attention with
                the same; ``"gkat"``, softmax attention masked by the random-walk kernel, and ``"gkat-diffusion"``, by
                the diffusion kernel with a time that is learnt per head; ``"linear"`` and ``"softmax"``, without a
                mask; ``"mlp"``, without attention and without the graph.
            **changes: Fields to set. Of ``mask_options``, those that are given replace those of the preset.

        The kernel of ``"gkat"`` is that of the authors: how often 50 independent walks of 3 steps visit a node,
        whatever the step (f = 1, not learnt), with unit diagonal, one kernel for all heads and layers. What differs
        from their network: a block is a norm, attention and a perceptron, each branch beside a residual; theirs is
        attention alone, whose heads are concatenated, and an ELU.

        Example:
            >>> GraphTransformerConfig.preset("gkat", depth=2).kind
            'softmax'
        """
        if name not in PRESETS:
            raise ValueError(f"`name` must be one of {tuple(PRESETS)}, but is {name!r}.")
        fields = PRESETS[name] | changes
        own = PRESETS[name].get("mask_options")
        if own is not None:
            # Another mask has no use for walks, say.
            own = own.obeyed_by(fields["mask"])
            fields["mask_options"] = own.updated(changes.get("mask_options") or GraphMaskOptions())
        return cls(**fields)

    def build(self) -> GraphTransformer:
        """The model."""
        given = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        for name in ("in_features", "num_classes"):
            if given[name] is None:
                raise ValueError(f"`{name}` is None. Set it, or let an experiment take it from its data.")
        return GraphTransformer(**given)


PRESETS: dict[str, dict[str, Any]] = {
    "grf": {"mask": "walk", "kind": "linear"},
    "grf-softmax": {"mask": "walk", "kind": "softmax"},
    "gkat": {
        "mask": "visit",
        "kind": "softmax",
        "mask_options": GraphMaskOptions(
            num_walks=50, max_length=3, coupling="iid", learnable=False, shared_heads=True
        ),
    },
    "gkat-diffusion": {"mask": "diffusion", "kind": "softmax"},
    "linear": {"mask": "all", "kind": "linear"},
    "softmax": {"mask": "all", "kind": "softmax"},
    "mlp": {"mask": "none", "local": "none"},
}


def norm_factory(norm: str, dim: int) -> Callable[[], nn.Module]:
    """Makes norms by name."""
    if norm not in get_args(Norm):
        raise ValueError(f"`norm` must be one of {get_args(Norm)}, but is {norm!r}.")
    makers: dict[str, Callable[[], nn.Module]] = {
        "layer": lambda: nn.LayerNorm(dim),
        "batch": lambda: nn.BatchNorm1d(dim),
        "none": nn.Identity,
    }
    return makers[norm]


def _head(dim: int, head_dim: int | None, num_classes: int) -> nn.Module:
    if head_dim is None:
        return nn.Linear(dim, num_classes)
    return nn.Sequential(nn.Linear(dim, head_dim), nn.GELU(), nn.Linear(head_dim, num_classes))


def check_features(x: Tensor | SparseRows, graph: Graph, in_features: int) -> None:
    """A ValueError unless there is a graph, and one row of features per node of it."""
    if not isinstance(graph, Graph):
        raise ValueError(
            f"`graph` must be a topomask.Graph, but is a {type(graph).__name__}. Turn PyG's data with Graph.from_pyg, "
            "and several graphs into one with Graph.batch."
        )
    if x.shape != (graph.num_nodes, in_features):
        raise ValueError(
            f"`x` must have shape [num_nodes={graph.num_nodes}, in_features={in_features}], but has shape "
            f"{tuple(x.shape)}. Pass one row per node of `graph`, which may be a batch of graphs."
        )
    if isinstance(x, Tensor) and not x.is_floating_point():
        raise ValueError(f"`x` must have a floating dtype, but has {x.dtype}. Pass x.float(), or one-hot categories.")


def check_sizes(**sizes: int) -> None:
    """A ValueError that names the first size below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"`{name}` must be at least 1, but is {size}.")


def check_probabilities(**probabilities: float) -> None:
    """A ValueError that names the first that is none to drop something with."""
    for name, p in probabilities.items():
        if not 0 <= p < 1:
            raise ValueError(f"`{name}` must lie in [0, 1), but is {p}.")


def _check_statistics(name: str, norm: nn.Module, count: int, unit: str, fix: str) -> None:
    """A ValueError if a norm is to learn from a batch of one."""
    if count == 1 and isinstance(norm, nn.BatchNorm1d):
        raise ValueError(
            f"`{name}` is 'batch', which needs more than one {unit} to train on, but the batch has one. {fix}"
        )


def _check_no_attention(kind: str, **options: Any) -> None:
    """A ValueError for options of attention in a model without it."""
    checked_feature_map(kind, None)
    options |= {"kind": None if kind == "linear" else kind}
    for name, value in options.items():
        if value:
            raise ValueError(f"`{name}` is {value!r}, but with mask='none' there is no attention. Leave it out.")
