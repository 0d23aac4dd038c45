"""Layers."""

from topomask.feature_maps import Exp, ExponentialMap, SoftmaxFeatures
from topomask.modulation import Modulation
from topomask.nn.attention import Attention
from topomask.nn.block import TransformerBlock
from topomask.nn.masked_attention import MaskedAttention
from topomask.nn.message_passing import MessagePassing
from topomask.nn.mlp import MLP
from topomask.nn.patches import PatchEmbedding
from topomask.nn.stochastic_position import StochasticPositionEncoding

__all__ = [
    "MLP",
    "Attention",
    "Exp",
    "ExponentialMap",
    "MaskedAttention",
    "MessagePassing",
    "Modulation",
    "PatchEmbedding",
    "SoftmaxFeatures",
    "StochasticPositionEncoding",
    "TransformerBlock",
]
