"""Models.

Names are imported when they are first used, so that a model brings no other with it.
"""

from typing import TYPE_CHECKING

from topomask.support.imports import lazy_names

if TYPE_CHECKING:
    from topomask.models.attention_variants import AttentionOptions, TokenGrid, make_attention
    from topomask.models.baselines import GraphNetwork, GraphNetworkConfig
    from topomask.models.encoder import GridEncoder
    from topomask.models.graph_masks import GraphMaskOptions
    from topomask.models.graph_transformer import GraphTransformer, GraphTransformerConfig
    from topomask.models.interlacer import Interlacer, InterlacerConfig
    from topomask.models.neighbors import AnchorNeighbors, NeighborLayer, WalkNeighbors
    from topomask.models.resize import resize_positions
    from topomask.models.video import VideoTransformer, VideoTransformerConfig
    from topomask.models.vit import VisionTransformer, VisionTransformerConfig

__all__ = [
    "AnchorNeighbors",
    "AttentionOptions",
    "GraphMaskOptions",
    "GraphNetwork",
    "GraphNetworkConfig",
    "GraphTransformer",
    "GraphTransformerConfig",
    "GridEncoder",
    "Interlacer",
    "InterlacerConfig",
    "NeighborLayer",
    "TokenGrid",
    "VideoTransformer",
    "VideoTransformerConfig",
    "VisionTransformer",
    "VisionTransformerConfig",
    "WalkNeighbors",
    "make_attention",
    "resize_positions",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "attention_variants": ("AttentionOptions", "TokenGrid", "make_attention"),
        "baselines": ("GraphNetwork", "GraphNetworkConfig"),
        "encoder": ("GridEncoder",),
        "graph_masks": ("GraphMaskOptions",),
        "graph_transformer": ("GraphTransformer", "GraphTransformerConfig"),
        "interlacer": ("Interlacer", "InterlacerConfig"),
        "neighbors": ("AnchorNeighbors", "NeighborLayer", "WalkNeighbors"),
        "resize": ("resize_positions",),
        "video": ("VideoTransformer", "VideoTransformerConfig"),
        "vit": ("VisionTransformer", "VisionTransformerConfig"),
    },
)
