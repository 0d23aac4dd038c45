"""Models."""

from topomask.models.attention_variants import AttentionOptions
from topomask.models.encoder import GridEncoder
from topomask.models.interlacer import Interlacer, InterlacerConfig
from topomask.models.video import VideoTransformer, VideoTransformerConfig
from topomask.models.vit import VisionTransformer, VisionTransformerConfig

__all__ = [
    "AttentionOptions",
    "GridEncoder",
    "Interlacer",
    "InterlacerConfig",
    "VideoTransformer",
    "VideoTransformerConfig",
    "VisionTransformer",
    "VisionTransformerConfig",
]
