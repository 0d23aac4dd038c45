"""A vision transformer with masked attention on the grid of patches, and its weights at another image size."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from topomask.models.attention_variants import AttentionFactory, AttentionOptions, checked_options
from topomask.models.encoder import GridEncoder, Pooling, init_linear
from topomask.nn import PatchEmbedding
from topomask.nn.patches import check_shape, grid_shape, pair, whole_numbers
from topomask.support.checks import check_choice
from topomask.support.config import ModelConfig


class VisionTransformer(nn.Module):
    """A classifier of images: patches on a grid, learnt positions, masked attention.

    Each layer and head has its own mask on the grid of patches, with its own walks, which are drawn once and frozen.

    Args:
        image_size: Height and width of images, or one number for both.
        patch_size: Height and width of patches, or one number for both.
        in_channels: Number of channels of images.
        num_classes: Number of classes.
        dim: Width of the tokens.
        depth: Number of blocks.
        num_heads: Number of heads.
        mlp_ratio: Width of the MLPs, as a multiple of ``dim``.
        attention: A name, see :mod:`topomask.models.attention_variants` or ``topomask list attention``, or a function
            that makes an attention layer. Linear attention has ReLU features, as in the paper.
        attention_options: Options of the attention: walks, feature map, seed.
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
        """Map images [B, channels, height, width] to the input of the head, [B, C]."""
        fix = "Resize the images, or build the model with their `image_size` and `in_channels`."
        check_shape("images", images, self.input_shape, fix)
        return self.encoder(self.embedding(images))

    def forward(self, images: Tensor) -> Tensor:
        """Map images [B, channels, height, width] to logits, [B, num_classes]."""
        return self.head(self.represent(images))


@dataclass(frozen=True)
class VisionTransformerConfig(ModelConfig[VisionTransformer]):
    """The arguments of :class:`VisionTransformer` as data. Recipes set sizes that are None from the data."""

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
        """Make a config by name, with changes.

        Args:
            name: ``"tiny"``, ``"small"`` and ``"base"`` are the usual sizes of vision transformers; ``"nano"`` is for
                images of a few pixels; ``"paper-imagenet"``, ``"paper-inaturalist"`` and ``"paper-places"`` are the
                columns of Table 2 of the paper: ViT-B/16 on a grid of 16 x 16 patches with the paper's walks.
            **changes: Fields to set. If ``attention`` is changed, options that it does not have are dropped, and
                ``halt_prob`` takes its default.

        Example:
            >>> VisionTransformerConfig.preset("tiny", num_classes=10).dim
            192
        """
        check_choice("name", name, PRESETS)
        config = cls(**PRESETS[name])
        if changes.get("attention", config.attention) != config.attention:
            # The paper's halting probability is for its own walks only.
            options = dataclasses.replace(config.attention_options, halt_prob=None).obeyed_by(changes["attention"])
            config = dataclasses.replace(config, attention_options=options)
        return dataclasses.replace(config, **changes)


_IMAGENET: dict[str, Any] = {"image_size": 224, "in_channels": 3, "num_classes": 1000}
_BASE: dict[str, Any] = _IMAGENET | {"dim": 768, "depth": 12, "num_heads": 12}
_PAPER: dict[str, Any] = _BASE | {"image_size": 256, "attention": "grf-paper"}
_LONG_WALKS = AttentionOptions(num_walks=100, max_length=100, halt_prob=0.1)
_SHORT_WALKS = AttentionOptions(num_walks=20, max_length=10, halt_prob=0.1)

PRESETS: dict[str, dict[str, Any]] = {
    "nano": {"image_size": 28, "patch_size": 2, "in_channels": 1, "num_classes": 10, "dim": 64, "depth": 3}
    | {"num_heads": 4, "mlp_ratio": 2.0},
    "tiny": _IMAGENET | {"dim": 192, "depth": 12, "num_heads": 3},
    "small": _IMAGENET | {"dim": 384, "depth": 12, "num_heads": 6},
    "base": _BASE,
    "paper-imagenet": _PAPER | {"attention_options": _LONG_WALKS},
    "paper-inaturalist": _PAPER | {"num_classes": 10_000, "attention_options": _SHORT_WALKS},
    "paper-places": _PAPER | {"num_classes": 365, "attention_options": _SHORT_WALKS},
}

_POSITION = "encoder.position"


def resize_positions(
    weights: Mapping[str, Tensor], model: VisionTransformer, shape: tuple[int, int] | None = None
) -> dict[str, Tensor]:
    """Adapt weights that were learnt on images of another size to a model.

    Learnt positions are resampled bilinearly from the old grid of patches to the new one. Walks are those of the model,
    on its own grid: build it with the same options as the old one. All other weights, the modulation of the walks
    included, are unchanged. If the grid is the same, nothing changes.

    Args:
        weights: The ``state_dict()`` of the old model.
        model: The model that will load them.
        shape: Rows and columns of the old grid of patches. Default: a square.

    Returns:
        A state dict for ``model.load_state_dict``.

    Example:
        >>> import torch, topomask as tm
        >>> small, large = (tm.models.VisionTransformer(size, 4, dim=8, depth=1, num_heads=2) for size in (16, 32))
        >>> large.load_state_dict(tm.models.resize_positions(small.state_dict(), large))
        <All keys matched successfully>
    """
    if _POSITION not in weights:
        raise ValueError(f"`weights` must have {_POSITION!r}. Pass the state dict of a VisionTransformer.")
    position, new, own = weights[_POSITION], model.encoder.grid.shape, model.state_dict()
    old: tuple[int, ...] = (math.isqrt(len(position)),) * 2
    if shape is not None:
        old = whole_numbers("shape", shape, "(rows, columns) of the old grid", 2)
    if math.prod(old) != len(position):
        raise ValueError(
            f"`shape` must be the rows and columns of a grid of {len(position)} patches, but is {shape}. Pass the "
            "shape of the old model's grid."
        )
    if old == new:
        return dict(weights)
    # Walks are extra state.
    fitted = {name: value for name, value in weights.items() if not name.endswith("_extra_state")}
    fitted |= {name: value for name, value in own.items() if name.endswith("_extra_state")}
    image = position.detach().to(torch.promote_types(position.dtype, torch.float32)).mT.unflatten(-1, old)[None]
    # Antialiased, so that every old position counts even on a coarser grid.
    image = F.interpolate(image, size=list(new), mode="bilinear", antialias=True)
    fitted[_POSITION] = image[0].flatten(1).mT.to(position.dtype).contiguous()
    for name, value in fitted.items():
        if name in own and value.shape != own[name].shape:
            raise ValueError(
                f"`weights` have {name!r} with shape {tuple(value.shape)}, but the model's has shape "
                f"{tuple(own[name].shape)}, and only positions are resampled. Build the model like the old one except "
                "for `image_size`, with attention that does not learn a number per position or offset."
            )
    return fitted
