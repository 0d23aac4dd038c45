"""Layers."""

from topomask.feature_maps import Exp, ExponentialMap, SoftmaxFeatures
from topomask.modulation import Modulation
from topomask.nn.attention import MaskedAttention
from topomask.nn.stochastic_position import StochasticPositionEncoding

__all__ = [
    "Exp",
    "ExponentialMap",
    "MaskedAttention",
    "Modulation",
    "SoftmaxFeatures",
    "StochasticPositionEncoding",
]
