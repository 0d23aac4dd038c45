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

__getattr__, __dir__, __all__ = lazy_names(__name__)
