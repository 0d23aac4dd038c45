"""Layers.

Names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from topomask.support.imports import lazy_names

if TYPE_CHECKING:
    from topomask.attention.feature_maps import Exp, ExponentialMap, SoftmaxFeatures
    from topomask.nn.attention import Attention, MaskedAttention
    from topomask.nn.block import MLP, TransformerBlock
    from topomask.nn.graph_convolution import GraphConvolution
    from topomask.nn.message_passing import AnchorLists, MessagePassing
    from topomask.nn.patches import PatchEmbedding
    from topomask.nn.readout import GraphReadout
    from topomask.nn.sparse_rows import SparseRows
    from topomask.nn.stochastic_position import StochasticPositionEncoding
    from topomask.walks.modulation import Modulation

__all__ = [
    "MLP",
    "AnchorLists",
    "Attention",
    "Exp",
    "ExponentialMap",
    "GraphConvolution",
    "GraphReadout",
    "MaskedAttention",
    "MessagePassing",
    "Modulation",
    "PatchEmbedding",
    "SoftmaxFeatures",
    "SparseRows",
    "StochasticPositionEncoding",
    "TransformerBlock",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
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
    },
)
