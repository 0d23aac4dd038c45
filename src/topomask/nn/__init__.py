"""Layers.

:class:`MaskedGPSConv` is imported when it is first used, since it needs PyG.
"""

import importlib
from typing import TYPE_CHECKING, Any

from topomask.feature_maps import Exp, ExponentialMap, SoftmaxFeatures
from topomask.modulation import Modulation
from topomask.nn.attention import Attention
from topomask.nn.block import TransformerBlock
from topomask.nn.graph_convolution import GraphConvolution
from topomask.nn.masked_attention import MaskedAttention
from topomask.nn.message_passing import AnchorLists, MessagePassing
from topomask.nn.mlp import MLP
from topomask.nn.patches import PatchEmbedding
from topomask.nn.readout import GraphReadout
from topomask.nn.sparse_rows import SparseRows
from topomask.nn.stochastic_position import StochasticPositionEncoding

if TYPE_CHECKING:
    from topomask.nn.gps import MaskedGPSConv

__all__ = [
    "MLP",
    "AnchorLists",
    "Attention",
    "Exp",
    "ExponentialMap",
    "GraphConvolution",
    "GraphReadout",
    "MaskedAttention",
    "MaskedGPSConv",
    "MessagePassing",
    "Modulation",
    "PatchEmbedding",
    "SoftmaxFeatures",
    "SparseRows",
    "StochasticPositionEncoding",
    "TransformerBlock",
]


def __getattr__(name: str) -> Any:
    if name == "MaskedGPSConv":
        return importlib.import_module("topomask.nn.gps").MaskedGPSConv
    raise AttributeError(f"module 'topomask.nn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
