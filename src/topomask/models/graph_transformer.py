"""A transformer for graphs: masked attention between nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Self, get_args

from torch import Tensor, nn

from topomask.attention.inputs import FeatureMap, check_features
from topomask.graph import Graph
from topomask.masks.mask import Mask
from topomask.masks.operator import Normalizer
from topomask.models.graph_masks import GraphMaskOptions, MaskFactory, layer_masks
from topomask.nn import MLP, GraphConvolution, GraphReadout, MaskedAttention, SparseRows
from topomask.nn.attention import Kind, checked_feature_map
from topomask.nn.dropout import Dropout
from topomask.nn.readout import Readout
from topomask.nn.sparse_rows import apply_linear, drop_features
from topomask.support.checks import check_choice, check_probabilities, check_sizes
from topomask.support.config import ModelConfig

Local = Literal["none", "gcn", "sum"]
Norm = Literal["layer", "batch", "none"]
HeadNorm = Literal["batch"]
_NORMS = {"layer": nn.LayerNorm, "batch": nn.BatchNorm1d, "none": nn.Identity}
_LEAVE_OUT = "Use larger batches; to skip a last batch of one graph, pass GraphBatches(..., min_graphs=2)."


class GraphTransformer(nn.Module):
    """A classifier of graphs or nodes: blocks of masked attention, an optional graph convolution, and an MLP.

    A batch of graphs is one block-diagonal :class:`topomask.Graph`, without padding; graphs do not affect each other.
    Masks have no graph of their own: each call provides one. Walks are sampled once per graph, and reused when the
    graph is part of another batch.

    Args:
        in_features: Number of features of a node.
        num_classes: Number of classes.
        dim: Width of the tokens.
        depth: Number of blocks.
        num_heads: Number of attention heads.
        mlp_ratio: Width of the MLPs, as a multiple of ``dim``.
        mask: A name in :mod:`topomask.models.graph_masks`, such as ``"walk"``, ``"all"`` (attention without a mask) or
            ``"none"`` (no attention); a function that makes the mask of a layer, given the number of heads; or a mask
            that works on any graph, shared by all layers.
        kind: ``"linear"`` or ``"softmax"`` attention. This, ``attention_dropout``, ``feature_map`` and ``normalizer``
            cannot be set with mask ``"none"``.
        mask_options: Options of a mask by name: number of walks, seed, and so on.
        local: Graph convolution in parallel to attention: ``"none"``, ``"gcn"`` or ``"sum"``, see
            :class:`topomask.nn.GraphConvolution`.
        readout: ``"node"`` to classify nodes, or ``"mean"``, ``"sum"`` or ``"attention"`` over the nodes of a graph.
        norm: ``"layer"``, ``"batch"`` or ``"none"``. ``"batch"`` normalises over the nodes of all graphs: if a batch is
            a single graph, the mean or sum of its nodes carries no information in training.
        dropout: Dropout probability of the output of each branch, and of the input of the head.
        input_dropout: Dropout probability of the input features.
        attention_dropout: Probability of dropping a pair; linear attention is then computed over pairs.
        feature_map: Feature map of linear attention. Default: ``"relu"``.
        normalizer: Normaliser of attention. Default: that of the mask.
        head_dim: Width of a hidden layer of the head. Default: the head is linear, so that without attention and
            convolution the logits are a sum over nodes.
        head_norm: ``"batch"`` for a batch norm after the readout, over the graphs of a batch, which needs at least two.
            Without it, training has to scale down sums over hundreds of nodes first. Default: none.

    Example:
        >>> import torch, topomask as tm
        >>> graphs = [tm.cycle_graph(5), tm.path_graph(3)]
        >>> model = tm.models.GraphTransformer(4, 2, dim=16, depth=2, num_heads=2, readout="mean")
        >>> model(torch.randn(8, 4), tm.Graph.batch(graphs)).shape
        torch.Size([2, 2])

    References:
        Choromanski et al. (2022), GKAT; Rampasek et al. (2022), for a local branch in parallel to attention.
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
        check_choice("local", local, get_args(Local))
        check_choice("norm", norm, get_args(Norm))
        if head_norm not in (None, *get_args(HeadNorm)):
            raise ValueError(f"`head_norm` must be 'batch' or None, but is {head_norm!r}.")
        if head_norm is not None and readout == "node":
            raise ValueError("`head_norm` is a norm over graphs, but readout='node' classifies nodes. Leave it out.")
        check_probabilities(dropout=dropout, input_dropout=input_dropout, attention_dropout=attention_dropout)
        norms = partial(_NORMS[norm], dim)
        how: dict[str, Any] = {"kind": kind, "feature_map": feature_map, "normalizer": normalizer}
        masks = layer_masks(mask, depth, num_heads, mask_options)
        if masks[0] is None:
            _check_no_attention(**how, attention_dropout=attention_dropout)
        self.in_features, self.input_dropout = in_features, input_dropout
        self.embedding = nn.Linear(in_features, dim)
        self.blocks = nn.ModuleList(
            GraphBlock(
                None
                if layer_mask is None
                else MaskedAttention(dim, num_heads, layer_mask, **how, dropout=attention_dropout),
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
        hidden = () if head_dim is None else (nn.Linear(dim, head_dim), nn.GELU())
        last = nn.Linear(dim if head_dim is None else head_dim, num_classes)
        self.head = nn.Sequential(*hidden, last) if hidden else last

    def represent(self, x: Tensor | SparseRows, graph: Graph) -> Tensor:
        """Compute the input of the head: one vector per graph, [G, C], or per node, [N, C]."""
        check_features(x, graph, self.in_features)
        if self.training:
            _check_statistics("norm", self.norm, graph.num_nodes, "node", "Use larger batches, or norm='layer'.")
            _check_statistics("head_norm", self.head_norm, graph.num_graphs, "graph", _LEAVE_OUT)
        tokens = apply_linear(self.embedding, drop_features(x, self.input_dropout, self.training))
        for block in self.blocks:
            tokens = block(tokens, graph)
        return self.head_norm(self.readout(self.norm(tokens), graph))

    def forward(self, x: Tensor | SparseRows, graph: Graph) -> Tensor:
        """Compute logits.

        Args:
            x: Features of the nodes, [N, in_features], dense or sparse.
            graph: A graph, or a batch of graphs.

        Returns:
            [N, num_classes] for nodes, [num_graphs, num_classes] for graphs.
        """
        return self.head(self.dropout(self.represent(x, graph)))


class GraphBlock(nn.Module):
    """Attention and a graph convolution in parallel, then an MLP; each with a residual connection."""

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
        # Unused parameters would be an error when training in several processes.
        self.mixing_norm = nn.Identity() if attention is None and local is None else norms()
        self.attention, self.local = attention, local
        self.mlp_norm, self.mlp = norms(), mlp
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        """Map tokens to tokens, [N, C]."""
        normed = self.mixing_norm(x)
        if self.attention is not None:
            x = x + self.dropout(self.attention(normed, graph))
        if self.local is not None:
            x = x + self.dropout(self.local(normed, graph))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


@dataclass(frozen=True)
class GraphTransformerConfig(ModelConfig[GraphTransformer]):
    """The arguments of :class:`GraphTransformer` as data. Recipes set features and classes that are None."""

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
        """Make a config by name, with changes.

        Args:
            name: ``"grf"``, linear attention masked by graph random features (``mask="walk"``); ``"grf-softmax"``,
                softmax attention with the same mask; ``"gkat"``, softmax attention masked by the random-walk kernel;
                ``"gkat-diffusion"``, by the diffusion kernel with a learnt time per head; ``"linear"`` and
                ``"softmax"``, without a mask; ``"mlp"``, without attention and without the graph.
            **changes: Fields to set. Fields of ``mask_options`` that are not None replace those of the preset.

        The kernel of ``"gkat"`` is that of the authors: how often 50 independent walks of 3 steps visit a node, at any
        step (f = 1, not learnt), with unit diagonal, one kernel for all heads and layers. The network differs: a block
        has norms, attention and an MLP with residual connections; theirs has only attention, whose heads are
        concatenated, and an ELU.

        Example:
            >>> GraphTransformerConfig.preset("gkat", depth=2).kind
            'softmax'
        """
        check_choice("name", name, PRESETS)
        fields = PRESETS[name] | changes
        own = PRESETS[name].get("mask_options")
        if own is not None:
            # Another mask may not have these options.
            given = changes.get("mask_options") or GraphMaskOptions()
            fields["mask_options"] = replace(own.obeyed_by(fields["mask"]), **given.given())
        return cls(**fields)


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


def _check_statistics(name: str, norm: nn.Module, count: int, unit: str, fix: str) -> None:
    """Raise a ValueError if a batch norm would be trained on a batch of one."""
    if count == 1 and isinstance(norm, nn.BatchNorm1d):
        raise ValueError(
            f"`{name}` is 'batch', which needs more than one {unit} to train on, but the batch has one. {fix}"
        )


def _check_no_attention(kind: str, **options: Any) -> None:
    """Raise a ValueError for options of attention in a model without attention."""
    checked_feature_map(kind, None)
    options |= {"kind": None if kind == "linear" else kind}
    for name, value in options.items():
        if value:
            raise ValueError(f"`{name}` is {value!r}, but with mask='none' there is no attention. Leave it out.")
