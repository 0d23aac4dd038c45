"""A video transformer: a factorised encoder over space, then over time."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, nn

from topomask.models.attention_variants import AttentionFactory, AttentionOptions, checked_options
from topomask.models.encoder import GridEncoder, Pooling, init_linear
from topomask.nn import PatchEmbedding
from topomask.nn.patches import check_shape, grid_shape, pair, whole_numbers
from topomask.support.config import ModelConfig


class VideoTransformer(nn.Module):
    """A classifier of videos (ViViT, factorised encoder): tubelets, an encoder over space, then one over time.

    Tubelets are patches of several frames. The first encoder maps the tubelets of each time step, on the grid of an
    image, to one vector; the second encodes these vectors on a path. Each layer and head has its own mask.

    Args:
        num_frames: Number of frames of a video.
        image_size: Height and width of frames, or one number for both.
        tubelet_size: Frames, height and width of tubelets.
        in_channels: Number of channels of frames.
        num_classes: Number of classes.
        dim: Width of the tokens.
        depth: Number of blocks over space.
        temporal_depth: Number of blocks over time.
        num_heads: Number of heads.
        mlp_ratio: Width of the MLPs, as a multiple of ``dim``.
        attention: A name, see :mod:`topomask.models.attention_variants` or ``topomask list attention``, or a function
            that makes an attention layer. ``"softmax"`` is the paper's baseline; ``"grf-softmax"`` adds graph random
            features, with this library's walks instead of the paper's.
        attention_options: Options of the attention: walks, feature map, seed.
        pooling: ``"mean"`` or ``"cls"``, over space and over time, see :class:`GridEncoder`.

    Example:
        >>> import torch, topomask as tm
        >>> model = tm.models.VideoTransformer(8, 32, (2, 8, 8), 1, 5, dim=32, depth=1, temporal_depth=1, num_heads=2)
        >>> model(torch.randn(3, 1, 8, 32, 32)).shape
        torch.Size([3, 5])

    References:
        Arnab et al. (2021), ViViT; Reid et al. (2025), App. C.4.
    """

    def __init__(
        self,
        num_frames: int = 32,
        image_size: int | tuple[int, int] = 224,
        tubelet_size: tuple[int, int, int] = (2, 16, 16),
        in_channels: int = 3,
        num_classes: int = 400,
        dim: int = 768,
        depth: int = 12,
        temporal_depth: int = 4,
        num_heads: int = 12,
        mlp_ratio: float = 4.0,
        attention: str | AttentionFactory = "grf-softmax",
        attention_options: AttentionOptions | None = None,
        pooling: Pooling = "mean",
    ) -> None:
        super().__init__()
        tubelet = whole_numbers("tubelet_size", tubelet_size, "(frames, height, width)", 3)
        (frames,) = whole_numbers("num_frames", (num_frames,), "one number", 1)
        whole = (frames, *pair("image_size", image_size))
        num_times, *space = grid_shape(("(num_frames, *image_size)", whole), ("tubelet_size", tubelet))
        options = checked_options("attention_options", attention_options)
        common = (num_heads, mlp_ratio, attention)
        self.input_shape = (in_channels, *whole)
        self.embedding = PatchEmbedding(in_channels, dim, tubelet)
        self.spatial = GridEncoder(tuple(space), dim, depth, *common, options, pooling)
        self.temporal = GridEncoder((num_times,), dim, temporal_depth, *common, options.for_layer(depth), pooling)
        self.head = nn.Linear(dim, num_classes)
        init_linear(self.embedding)

    def represent(self, videos: Tensor) -> Tensor:
        """Map videos [B, channels, frames, height, width] to the input of the head, [B, C]."""
        fix = "Crop and resize the videos, or build the model with their `num_frames`, `image_size` and `in_channels`."
        check_shape("videos", videos, self.input_shape, fix)
        tokens = self.embedding(videos)  # [B, times, *grid, C]
        frames = self.spatial(tokens.flatten(0, 1)).unflatten(0, tokens.shape[:2])
        return self.temporal(frames)

    def forward(self, videos: Tensor) -> Tensor:
        """Map videos [B, channels, frames, height, width] to logits, [B, num_classes]."""
        return self.head(self.represent(videos))


@dataclass(frozen=True)
class VideoTransformerConfig(ModelConfig[VideoTransformer]):
    """The arguments of :class:`VideoTransformer` as data. Recipes set sizes that are None from the data."""

    num_frames: int | None = None
    image_size: int | tuple[int, int] | None = None
    tubelet_size: tuple[int, int, int] = (2, 16, 16)
    in_channels: int | None = None
    num_classes: int | None = None
    dim: int = 768
    depth: int = 12
    temporal_depth: int = 4
    num_heads: int = 12
    mlp_ratio: float = 4.0
    attention: str = "grf-softmax"
    attention_options: AttentionOptions = field(default_factory=AttentionOptions)
    pooling: Pooling = "mean"
