"""The GPS layer of PyG with masked attention. Importing this needs PyG."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from topomask.graph import Graph
from topomask.masks.mask import Mask, check_serves_any_graph
from topomask.masks.operator import Operator
from topomask.nn.attention import MaskedAttention
from topomask.nn.dropout import drop
from topomask.support.imports import need

_GPSConv: Any = need("torch_geometric.nn", "MaskedGPSConv").GPSConv
_reset = need("torch_geometric.nn.inits", "MaskedGPSConv").reset
_OPTIONS = ("act", "act_kwargs", "norm", "norm_kwargs")


class MaskedGPSConv(_GPSConv):  # type: ignore[misc]
    r"""PyG's ``GPSConv`` whose global attention is masked by the graph.

    .. math:: h = \mathrm{norm}(x + \mathrm{conv}(x, G)) + \mathrm{norm}(x + \mathrm{attention}(x, M_G)), \qquad
        y = \mathrm{norm}(h + \mathrm{MLP}(h))

    ``GPSConv`` hands the graph to its local layer alone, and leaves out an attention whose class it does not know. Here
    attention gets a mask on the graph, on the nodes of a batch as they are: nothing is padded. The graph and its walks
    are kept as long as the tensor of its edges is, and made anew when what stands in it changes. Layers that share a
    mask share its walks. PyG's loaders make new tensors in every step: to sample the walks of a graph once for all
    epochs, take :class:`topomask.models.GraphTransformer` with :class:`topomask.data.GraphBatches`.

    Args:
        channels: Width of the tokens.
        conv: The local layer, such as PyG's ``GINConv``; None for attention alone.
        mask: The mask: it is on the graph of every call.
        heads: Heads of attention.
        dropout: Probability to drop a number, in training.
        kind: ``"linear"`` or ``"softmax"`` attention.
        attn_kwargs: More arguments of :class:`topomask.nn.MaskedAttention`.
        **options: ``act``, ``act_kwargs``, ``norm`` and ``norm_kwargs`` of ``GPSConv``.

    Example:
        >>> import torch, topomask as tm
        >>> from topomask.integrations.pyg import MaskedGPSConv
        >>> from torch_geometric.nn import GCNConv
        >>> mask = tm.WalkMask(symmetric=False, num_heads=2)
        >>> layer = MaskedGPSConv(8, GCNConv(8, 8), mask, heads=2)
        >>> edge_index, _ = tm.cycle_graph(5).to_edge_index()
        >>> layer(torch.randn(5, 8), edge_index).shape
        torch.Size([5, 8])

    References:
        Rampasek et al. (2022), Recipe for a general, powerful, scalable graph transformer.
    """

    def __init__(
        self,
        channels: int,
        conv: Any,
        mask: Mask,
        heads: int = 1,
        dropout: float = 0.0,
        *,
        kind: Any = "linear",
        attn_kwargs: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        for name in options:
            if name not in _OPTIONS:
                raise ValueError(
                    f"`{name}` is none of the options {_OPTIONS} of PyG's GPSConv that count here. Attention is set by "
                    "`mask`, `kind` and `attn_kwargs`."
                )
        if heads < 1 or channels % heads:
            raise ValueError(f"`channels` must be a multiple of `heads`, but they are {channels} and {heads}.")
        if not isinstance(mask, Mask):
            raise ValueError(
                f"`mask` must be a topomask.Mask, but is a {type(mask).__name__}. Take "
                f"WalkMask(symmetric=False, num_heads={heads}), say: it is on the graph of every call."
            )
        check_serves_any_graph(mask, "Take a mask of graphs, such as WalkMask.")
        super().__init__(channels, conv, heads, dropout, **options)
        self.attn = MaskedAttention(channels, heads, mask, kind=kind, **(attn_kwargs or {}))
        self.attn_type = f"masked {kind}"

    def reset_parameters(self) -> None:
        """Draw all weights anew; the mask keeps its own."""
        attention = self.attn
        parts = (attention.query, attention.key, attention.value, attention.out, self.norm1, self.norm2, self.norm3)
        for part in (self.conv, self.mlp, *parts):
            _reset(part)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        batch: Tensor | None = None,
        *,
        graph: Graph | None = None,
        walks: Any = None,
        **kwargs: Any,
    ) -> Tensor:
        """One layer.

        Args:
            x: Tokens, [N, C].
            edge_index: Edges, [2, E], both directions of each, for the local layer.
            batch: Which graph every node belongs to, [N], ascending. Default: that of ``graph``, or one graph.
            graph: The same as a graph. Default: made of ``edge_index``, ``batch`` and ``edge_weight``, once for all
                layers that are given the same tensors. Pass it where edges are directed or weights negative: PyG sends
                messages along edges, and here a node sees where its edges lead, so flip ``edge_index`` for it.
            walks: Walks already sampled on ``graph`` by ``layer.attn.mask.sample(graph)``. Default: sampled once
                per graph and mask.
            **kwargs: For the local layer. Weights of edges, ``edge_weight``, reach the mask too, as numbers: where a
                gradient is asked of them, ``graph`` must be given.

        Returns:
            Tokens, [N, C].
        """
        extra = {name for name, value in kwargs.items() if value is not None}
        extra -= {"edge_weight"} if graph is None else set()
        if self.conv is None and extra:
            raise ValueError(f"{sorted(extra)} are for a local layer, but `conv` is None. Leave them out.")
        if graph is None:
            graph = _graph(edge_index, batch, kwargs.get("edge_weight"), len(x))
        else:
            batch = _batch_of(graph, batch, x)
        normed = {"batch": batch} if self.norm_with_batch else {}
        parts = []
        if self.conv is not None:
            local = x + drop(self.conv(x, edge_index, **kwargs), self.dropout, self.training)
            parts.append(local if self.norm1 is None else self.norm1(local, **normed))
        operator = _operator(self.attn.mask, graph, walks)
        attended = x + drop(self.attn.attend(x, operator), self.dropout, self.training)
        parts.append(attended if self.norm2 is None else self.norm2(attended, **normed))
        out = torch.stack(parts).sum(dim=0)
        out = out + self.mlp(out)
        return out if self.norm3 is None else self.norm3(out, **normed)


# Walks are sampled by kernels that the compiler cannot look into.
@torch.compiler.disable
def _operator(mask: Mask, graph: Graph, walks: Any) -> Operator:
    return mask.on(graph, walks)


class _Batch:
    """What :meth:`Graph.from_pyg` looks at."""

    def __init__(self, edge_index: Tensor, num_nodes: int, batch: Tensor | None, edge_weight: Tensor | None) -> None:
        self.edge_index, self.num_nodes, self.batch, self.edge_weight = edge_index, num_nodes, batch, edge_weight


class _Made(NamedTuple):
    """A graph, and copies of what it was made of."""

    graph: Graph
    num_nodes: int
    tensors: list[Tensor | None]


# By the tensor of edges, and gone with it. What stands in it may change, also behind PyTorch's back: it is compared.
_KEPT: Any = WeakTensorKeyDictionary()


def _batch_of(graph: Graph, batch: Tensor | None, x: Tensor) -> Tensor | None:
    """Which graph every node belongs to, as PyG has it: for norms, which must not cross either."""
    if not isinstance(graph, Graph):
        raise ValueError(f"`graph` must be a topomask.Graph, but is a {type(graph).__name__}. Use Graph.from_pyg.")
    if graph.num_nodes != len(x):
        raise ValueError(f"`graph` must have the {len(x)} nodes of `x`, but has {graph.num_nodes}.")
    own = graph.groups_on(x.device)
    if own is None:
        own = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    if batch is not None and not torch.equal(batch.to(own), own):
        raise ValueError("`batch` contradicts `graph`: nodes belong to other graphs. Leave it out, or fix one of them.")
    return own if graph.num_graphs > 1 else batch


def _graph(edge_index: Tensor, batch: Tensor | None, edge_weight: Tensor | None, num_nodes: int) -> Graph:
    if edge_weight is not None and edge_weight.requires_grad:
        raise ValueError(
            "`edge_weight` asks for a gradient, which a mask cannot give. Pass `graph`, made of weights that are at "
            "rest, or detach them."
        )
    tensors = [edge_index, batch, edge_weight]
    made = _KEPT.get(edge_index)
    if made is None or made.num_nodes != num_nodes or not all(map(_same, made.tensors, tensors)):
        graph = _make_graph(edge_index, batch, edge_weight, num_nodes)
        made = _Made(graph, num_nodes, [None if x is None else x.detach().clone() for x in tensors])
        _KEPT[edge_index] = made
    return made.graph


def _same(first: Tensor | None, second: Tensor | None) -> bool:
    if first is None or second is None:
        return first is second
    return first.dtype == second.dtype and first.device == second.device and torch.equal(first, second)


def _make_graph(edge_index: Tensor, batch: Tensor | None, edge_weight: Tensor | None, num_nodes: int) -> Graph:
    if edge_index.layout != torch.strided:
        raise ValueError(
            f"`edge_index` must be edges [2, E] where `graph` is not given, but has layout {edge_index.layout}. Turn "
            "it with PyG's to_edge_index()."
        )
    try:
        return Graph.from_pyg(_Batch(edge_index, num_nodes, batch, edge_weight))
    except ValueError as error:
        advice = (
            " This layer has no such option: make the graph yourself, as tm.Graph.from_pyg(data, ...) with "
            "data.edge_index flipped, and pass it as `graph`."
        )
        optional = any(option in str(error) for option in ("directed=True", "signed=True"))
        raise ValueError(f"The mask cannot live on these edges: {error}{advice if optional else ''}") from error
