"""Layers. Names are imported on first use."""

from typing import TYPE_CHECKING

from topomask.support.imports import lazy_names

if TYPE_CHECKING:
    from topomask.attention.feature_maps import Exp as Exp
    from topomask.attention.feature_maps import ExponentialMap as ExponentialMap
    from topomask.attention.feature_maps import SoftmaxFeatures as SoftmaxFeatures
    from topomask.nn.attention import Attention as Attention
    from topomask.nn.attention import MaskedAttention as MaskedAttention
    from topomask.nn.block import MLP as MLP
    from topomask.nn.block import TransformerBlock as TransformerBlock
    from topomask.nn.graph_convolution import GraphConvolution as GraphConvolution
    from topomask.nn.message_passing import AnchorLists as AnchorLists
    from topomask.nn.message_passing import MessagePassing as MessagePassing
    from topomask.nn.patches import PatchEmbedding as PatchEmbedding
    from topomask.nn.readout import GraphReadout as GraphReadout
    from topomask.nn.sparse_rows import SparseRows as SparseRows
    from topomask.nn.stochastic_position import StochasticPositionEncoding as StochasticPositionEncoding
    from topomask.walks.modulation import Modulation as Modulation

_HOMES = {
    "attention": ("Attention", "MaskedAttention"),
    "block": ("MLP", "TransformerBlock"),
    "graph_convolution": ("GraphConvolution",),
    "message_passing": ("AnchorLists", "MessagePassing"),
    "patches": ("PatchEmbedding",),
    "readout": ("GraphReadout",),
    "sparse_rows": ("SparseRows",),
    "stochastic_position": ("StochasticPositionEncoding",),
    "topomask.attention.feature_maps": ("Exp", "ExponentialMap", "SoftmaxFeatures"),
    "topomask.walks.modulation": ("Modulation",),
}

__all__ = sorted(name for names in _HOMES.values() for name in names)

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
