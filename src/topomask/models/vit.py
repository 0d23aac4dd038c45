"""Images: a vision transformer whose patches know the grid they live on."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor, nn

from topomask.models.attention_variants import AttentionFactory, AttentionOptions, checked_options
from topomask.models.encoder import GridEncoder, Pooling, init_linear
from topomask.nn import PatchEmbedding
from topomask.nn.patches import check_shape, grid_shape, pair


class VisionTransformer(nn.Module):
    """A classifier of images: patches on a grid, learned positions, masked attention.

    Every layer and head has its own mask on the grid of patches, with its own walks, which are drawn once and frozen.

    Args:
        image_size: Height and width of images, or one number for both.
        patch_size: Height and width of patches, or one number for both.
        in_channels: Channels of images.
        num_classes: Classes.
        dim: Width of the tokens.
        depth: Blocks.
        num_heads: Heads.
        mlp_ratio: Width of the perceptrons, in terms of ``dim``.
        attention: A name of :mod:`topomask.models.attention_variants`, or a function that makes a layer of attention.
            Linear attention has ReLU features, as in the paper.
        attention_options: What the name does not say: walks, feature map, seed.
        pooling: ``"mean"`` or ``"cls"``, see :class:`GridEncoder`.

    Example:
        >>> import torch, topomask as tm
        >>> model = tm.models.VisionTransformer(28, 4, 1, 10, dim=32, depth=2, num_heads=2, attention="grf")
        >>> model(torch.randn(3, 1, 28, 28)).shape
        torch.Size([3, 10])

    References:
        Dosovitskiy et al. (2020); Reid et al. (2025), Sec. 4 and Table 2.
    """

    def __init__(
        self,
        image_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        in_channels: int = 3,
        num_classes: int = 1000,
        dim: int = 192,
        depth: int = 12,
        num_heads: int = 3,
        mlp_ratio: float = 4.0,
        attention: str | AttentionFactory = "grf",
        attention_options: AttentionOptions | None = None,
        pooling: Pooling = "mean",
    ) -> None:
        super().__init__()
        image_shape, patch_shape = pair("image_size", image_size), pair("patch_size", patch_size)
        shape = grid_shape(("image_size", image_shape), ("patch_size", patch_shape))
        attention_options = checked_options("attention_options", attention_options)
        self.input_shape = (in_channels, *image_shape)
        self.embedding = PatchEmbedding(in_channels, dim, patch_shape)
        self.encoder = GridEncoder(shape, dim, depth, num_heads, mlp_ratio, attention, attention_options, pooling)
        self.head = nn.Linear(dim, num_classes)
        init_linear(self.embedding)

    def represent(self, images: Tensor) -> Tensor:
        """One vector per image, [B, channels, height, width] to [B, C]: what the head classifies."""
        fix = "Resize the images, or build the model with their `image_size` and `in_channels`."
        check_shape("images", images, self.input_shape, fix)
        return self.encoder(self.embedding(images))

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the classes, [B, channels, height, width] to [B, num_classes]."""
        return self.head(self.represent(images))


@dataclass(frozen=True)
class VisionTransformerConfig:
    """The arguments of :class:`VisionTransformer` as data. What is None is taken from the data.

    Attributes:
        image_size: Height and width of images, or one number for both.
        patch_size: Height and width of patches, or one number for both.
        in_channels: Channels of images.
        num_classes: Classes.
        dim: Width of the tokens.
        depth: Blocks.
        num_heads: Heads.
        mlp_ratio: Width of the perceptrons, in terms of dim.
        attention: Name of the attention.
        attention_options: What the name does not say.
        pooling: "mean" or "cls".
    """

    image_size: int | tuple[int, int] | None = None
    patch_size: int | tuple[int, int] = 16
    in_channels: int | None = None
    num_classes: int | None = None
    dim: int = 192
    depth: int = 12
    num_heads: int = 3
    mlp_ratio: float = 4.0
    attention: str = "grf"
    attention_options: AttentionOptions = field(default_factory=AttentionOptions)
    pooling: Pooling = "mean"

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """A config by name, with changes.

        Args:
            name: ``"tiny"``, ``"small"`` and ``"base"`` are the usual sizes of vision transformers; ``"nano"`` is for
                images of a few pixels; ``"paper-imagenet"``, ``"paper-inaturalist"`` and ``"paper-places"`` are the
                columns of Table 2 of the paper: ViT-B/16 on a grid of 16 x 16 patches with the paper's walks.
            **changes: Fields to set. With another ``attention``, options that it does not obey are left out, and
                ``halt_prob`` is its own.

        Example:
            >>> VisionTransformerConfig.preset("tiny", num_classes=10).dim
            192
        """
        if name not in PRESETS:
            raise ValueError(f"`name` must be one of {tuple(PRESETS)}, but is {name!r}.")
        config = cls(**PRESETS[name])
        if changes.get("attention", config.attention) != config.attention:
            # When to halt belongs to the paper's walks; others have their own default.
            options = dataclasses.replace(config.attention_options, halt_prob=None).obeyed_by(changes["attention"])
            config = dataclasses.replace(config, attention_options=options)
        return dataclasses.replace(config, **changes)

    def build(self) -> VisionTransformer:
        """The model; what is None is the default of :class:`VisionTransformer`."""
        given = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return VisionTransformer(**{name: value for name, value in given.items() if value is not None})


_IMAGENET: dict[str, Any] = {"image_size": 224, "in_channels": 3, "num_classes": 1000}
_BASE: dict[str, Any] = _IMAGENET | {"dim": 768, "depth": 12, "num_heads": 12}
_PAPER: dict[str, Any] = _BASE | {"image_size": 256, "attention": "grf-paper"}


def _paper_walks(num_walks: int, max_length: int) -> AttentionOptions:
    return AttentionOptions(num_walks=num_walks, max_length=max_length, halt_prob=0.1)


PRESETS: dict[str, dict[str, Any]] = {
    "nano": {"image_size": 28, "patch_size": 2, "in_channels": 1, "num_classes": 10, "dim": 64, "depth": 3}
    | {"num_heads": 4, "mlp_ratio": 2.0},
    "tiny": _IMAGENET | {"dim": 192, "depth": 12, "num_heads": 3},
    "small": _IMAGENET | {"dim": 384, "depth": 12, "num_heads": 6},
    "base": _BASE,
    "paper-imagenet": _PAPER | {"attention_options": _paper_walks(100, 100)},
    "paper-inaturalist": _PAPER | {"num_classes": 10_000, "attention_options": _paper_walks(20, 10)},
    "paper-places": _PAPER | {"num_classes": 365, "attention_options": _paper_walks(20, 10)},
}
