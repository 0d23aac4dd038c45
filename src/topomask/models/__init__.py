"""Models."""

from topomask.models.attention_variants import AttentionOptions
from topomask.models.baselines import GraphNetwork, GraphNetworkConfig
from topomask.models.encoder import GridEncoder
from topomask.models.graph_masks import GraphMaskOptions
from topomask.models.graph_transformer import GraphTransformer, GraphTransformerConfig
from topomask.models.interlacer import Interlacer, InterlacerConfig
from topomask.models.video import VideoTransformer, VideoTransformerConfig
from topomask.models.vit import VisionTransformer, VisionTransformerConfig

__all__ = [
    "AttentionOptions",
    "GraphMaskOptions",
    "GraphNetwork",
    "GraphNetworkConfig",
    "GraphTransformer",
    "GraphTransformerConfig",
    "GridEncoder",
    "Interlacer",
    "InterlacerConfig",
    "VideoTransformer",
    "VideoTransformerConfig",
    "VisionTransformer",
    "VisionTransformerConfig",
]
