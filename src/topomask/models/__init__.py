"""Models. Names are imported on first use, so that importing a model does not import the others."""

from typing import TYPE_CHECKING

from topomask.support.imports import lazy_names

if TYPE_CHECKING:
    from topomask.models.attention_variants import AttentionOptions as AttentionOptions
    from topomask.models.attention_variants import TokenGrid as TokenGrid
    from topomask.models.attention_variants import make_attention as make_attention
    from topomask.models.baselines import GraphNetwork as GraphNetwork
    from topomask.models.baselines import GraphNetworkConfig as GraphNetworkConfig
    from topomask.models.encoder import GridEncoder as GridEncoder
    from topomask.models.graph_masks import GraphMaskOptions as GraphMaskOptions
    from topomask.models.graph_transformer import GraphTransformer as GraphTransformer
    from topomask.models.graph_transformer import GraphTransformerConfig as GraphTransformerConfig
    from topomask.models.interlacer import Interlacer as Interlacer
    from topomask.models.interlacer import InterlacerConfig as InterlacerConfig
    from topomask.models.neighbors import AnchorNeighbors as AnchorNeighbors
    from topomask.models.neighbors import NeighborLayer as NeighborLayer
    from topomask.models.neighbors import WalkNeighbors as WalkNeighbors
    from topomask.models.video import VideoTransformer as VideoTransformer
    from topomask.models.video import VideoTransformerConfig as VideoTransformerConfig
    from topomask.models.vit import VisionTransformer as VisionTransformer
    from topomask.models.vit import VisionTransformerConfig as VisionTransformerConfig
    from topomask.models.vit import resize_positions as resize_positions

__getattr__, __dir__, __all__ = lazy_names(__name__)
