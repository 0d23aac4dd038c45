"""Weights of a vision transformer at another image size."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from topomask.models.vit import VisionTransformer
from topomask.nn.patches import whole_numbers

_POSITION = "encoder.position"


def resize_positions(
    weights: Mapping[str, Tensor], model: VisionTransformer, shape: tuple[int, int] | None = None
) -> dict[str, Tensor]:
    """Weights that were learnt on images of another size, made to fit a model.

    Learnt positions are resampled bilinearly from the old grid of patches to the new one. Walks are those of the model,
    taken on its own grid: build it with the same options as the old one. All else, the modulation of the walks
    included, stays as it was learnt. On the same grid nothing changes.

    Args:
        weights: What ``state_dict()`` of the other model gave.
        model: The model that is to load them.
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
    old, new = _old_shape(weights[_POSITION], shape), model.encoder.grid.shape
    if old == new:
        return dict(weights)
    own = model.state_dict()
    fitted = {name: value for name, value in weights.items() if not _is_walk(name)}
    fitted |= {name: value for name, value in own.items() if _is_walk(name)}
    fitted[_POSITION] = _resample(weights[_POSITION], old, new)
    for name, value in fitted.items():
        if name in own and value.shape != own[name].shape:
            raise ValueError(
                f"`weights` have {name!r} with shape {tuple(value.shape)}, but the model's has shape "
                f"{tuple(own[name].shape)}, and only positions are resampled. Build the model as the old one but for "
                "`image_size`, with attention that does not learn a number per place or offset."
            )
    return fitted


def _old_shape(position: Tensor, shape: tuple[int, int] | None) -> tuple[int, ...]:
    side = math.isqrt(len(position))
    given = (side, side) if shape is None else whole_numbers("shape", shape, "(rows, columns) of the old grid", 2)
    if math.prod(given) != len(position):
        raise ValueError(
            f"`shape` must be the rows and columns of a grid of {len(position)} patches, but is {shape}. Pass that of "
            "the model that learnt the weights."
        )
    return given


def _resample(position: Tensor, old: tuple[int, ...], new: tuple[int, ...]) -> Tensor:
    """Positions [N, C] of the old grid on the new one."""
    image = position.detach().to(torch.promote_types(position.dtype, torch.float32)).mT.unflatten(-1, old)[None]
    # Antialiased, so that every old position counts on a coarser grid too.
    image = F.interpolate(image, size=list(new), mode="bilinear", antialias=True)
    return image[0].flatten(1).mT.to(position.dtype).contiguous()


def _is_walk(name: str) -> bool:
    return name.endswith("_extra_state")
