"""The GPS layer of PyG with masked attention. Importing this module requires PyG."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

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
    r"""PyG's ``GPSConv`` with global attention masked by the graph.

    .. math:: h = \mathrm{norm}(x + \mathrm{conv}(x, G)) + \mathrm{norm}(x + \mathrm{attention}(x, M_G)), \qquad
        y = \mathrm{norm}(h + \mathrm{MLP}(h))

    Attention runs on the nodes of a batch without padding. The graph and its walks are cached while the tensor
    ``edge_index`` lives and its values do not change, and layers that share a mask share its walks. PyG's loaders make
    new tensors in every step: to sample the walks of a graph only once in training, use
    :class:`topomask.models.GraphTransformer` with :class:`topomask.data.GraphBatches`.

    Args:
        channels: Width of the tokens.
        conv: The local layer, such as PyG's ``GINConv``; None for attention alone.
        mask: The mask, applied to the graph of each call.
        heads: Number of attention heads.
        dropout: Dropout probability.
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
                    f"MaskedGPSConv has no option `{name}`. Of the options of PyG's GPSConv it takes {_OPTIONS}; "
                    "attention is set by `mask`, `kind` and `attn_kwargs`."
                )
        if heads < 1 or channels % heads:
            raise ValueError(f"`channels` must be a multiple of `heads`, but they are {channels} and {heads}.")
        if not isinstance(mask, Mask):
            raise ValueError(
                f"`mask` must be a topomask.Mask, but is a {type(mask).__name__}. Pass, for example, "
                f"WalkMask(symmetric=False, num_heads={heads})."
            )
        check_serves_any_graph(mask, "Use a mask that takes a graph, such as WalkMask.")
        super().__init__(channels, conv, heads, dropout, **options)
        self.attn = MaskedAttention(channels, heads, mask, kind=kind, **(attn_kwargs or {}))
        self.attn_type = f"masked {kind}"

    def reset_parameters(self) -> None:
        """Reset all parameters except those of the mask."""
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
        """Apply the layer.

        Args:
            x: Tokens, [N, C].
            edge_index: Edges, [2, E], in both directions, for the local layer.
            batch: The graph that each node belongs to, [N], ascending. Default: that of ``graph``, or a single graph.
            graph: The same as a graph. Default: built from ``edge_index``, ``batch`` and ``edge_weight``, once for all
                layers that get the same tensors. Required if edges are directed or weights negative; flip
                ``edge_index`` for it, since here a node attends to the targets of its edges.
            walks: Walks sampled on ``graph`` by ``layer.attn.mask.sample(graph)``. Default: sampled once per graph and
                mask.
            **kwargs: Arguments of the local layer. The mask uses ``edge_weight`` too, but without gradients: if it
                requires them, pass ``graph``.

        Returns:
            Tokens, [N, C].
        """
        extra = {name for name, value in kwargs.items() if value is not None}
        extra -= {"edge_weight"} if graph is None else set()
        if self.conv is None and extra:
            raise ValueError(f"{sorted(extra)} are arguments of the local layer, but `conv` is None. Omit them.")
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


# The compiler cannot trace the kernels that sample walks.
@torch.compiler.disable
def _operator(mask: Mask, graph: Graph, walks: Any) -> Operator:
    return mask.on(graph, walks)


# By `edge_index`, for as long as that lives: a graph, with the number of nodes and copies of the tensors that it was
# made from. The values are compared in each call, because writes through NumPy do not change the version of a tensor.
_CACHE: Any = WeakTensorKeyDictionary()


def _batch_of(graph: Graph, batch: Tensor | None, x: Tensor) -> Tensor | None:
    """Return the graph of each node, as PyG's norms take it."""
    if not isinstance(graph, Graph):
        raise ValueError(f"`graph` must be a topomask.Graph, but is a {type(graph).__name__}. Use Graph.from_pyg.")
    if graph.num_nodes != len(x):
        raise ValueError(f"`graph` must have the {len(x)} nodes of `x`, but has {graph.num_nodes}.")
    own = graph.groups_on(x.device)
    if batch is not None:
        expected = x.new_zeros(len(x), dtype=torch.int64) if own is None else own
        if not torch.equal(batch.to(expected), expected):
            raise ValueError("`batch` does not match the graphs of the nodes in `graph`. Omit it, or fix one of them.")
    return batch if own is None else own


def _graph(edge_index: Tensor, batch: Tensor | None, edge_weight: Tensor | None, num_nodes: int) -> Graph:
    if edge_weight is not None and edge_weight.requires_grad:
        raise ValueError("`edge_weight` requires gradients, which a mask cannot give. Detach it, or pass `graph`.")
    tensors = (edge_index, batch, edge_weight)
    graph, *known = _CACHE.get(edge_index, (None,))
    if graph is None or known[0] != num_nodes or not all(map(_same, known[1:], tensors)):
        graph = _make_graph(edge_index, batch, edge_weight, num_nodes)
        _CACHE[edge_index] = graph, num_nodes, *(None if x is None else x.detach().clone() for x in tensors)
    return graph


def _same(first: Tensor | None, second: Tensor | None) -> bool:
    if first is None or second is None:
        return first is second
    return first.dtype == second.dtype and first.device == second.device and torch.equal(first, second)


def _make_graph(edge_index: Tensor, batch: Tensor | None, edge_weight: Tensor | None, num_nodes: int) -> Graph:
    if edge_index.layout != torch.strided:
        raise ValueError(
            f"`edge_index` must be a dense tensor [2, E] unless `graph` is given, but has layout {edge_index.layout}. "
            "Convert it with PyG's to_edge_index()."
        )
    data = SimpleNamespace(edge_index=edge_index, num_nodes=num_nodes, batch=batch, edge_weight=edge_weight)
    try:
        return Graph.from_pyg(data)
    except ValueError as error:
        message = f"Cannot build a graph from these edges: {error}"
        if "directed=True" in message or "signed=True" in message:
            message += " This layer has no such option: build the graph yourself with tm.Graph.from_pyg(data, ...), "
            message += "with data.edge_index flipped, and pass it as `graph`."
        raise ValueError(message) from error
