"""Patches of images and videos, and their embedding."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

from torch import Tensor, nn

from topomask.attention.inputs import check_tokens


class PatchEmbedding(nn.Module):
    """Cut images or videos into patches and map each patch to a token, like a strided convolution.

    Args:
        in_channels: Number of channels.
        dim: Width of the tokens.
        patch_shape: Size of a patch along each axis: (height, width) for images, (frames, height, width) for videos.

    Example:
        >>> import torch
        >>> PatchEmbedding(3, 8, (4, 4))(torch.randn(2, 3, 16, 32)).shape
        torch.Size([2, 4, 8, 8])
    """

    def __init__(self, in_channels: int, dim: int, patch_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.in_channels, self.patch_shape = in_channels, patch_shape
        self.projection = nn.Linear(in_channels * math.prod(patch_shape), dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, channels, *sizes] to tokens on a grid, [B, *grid, C]."""
        axes = len(self.patch_shape)
        sizes = x.shape[2:]
        fits = len(sizes) == axes and not any(size % patch for size, patch in zip(sizes, self.patch_shape, strict=True))
        if x.ndim != axes + 2 or x.shape[1] != self.in_channels or not fits:
            raise ValueError(
                f"`x` must have shape [B, {self.in_channels}, *sizes] with sizes that are multiples of "
                f"{self.patch_shape}, but has shape {tuple(x.shape)}."
            )
        for axis, patch in enumerate(self.patch_shape):
            x = x.unflatten(2 + 2 * axis, (-1, patch))
        # [B, channels, grid, patch, grid, patch, ...] to [B, grid, grid, ..., channels, patch, patch, ...]
        grid, patches = range(2, 2 + 2 * axes, 2), range(3, 3 + 2 * axes, 2)
        x = x.permute(0, *grid, 1, *patches)
        x = x.flatten(1 + axes)
        check_tokens(x, self.projection)
        return self.projection(x)


def pair(name: str, size: int | tuple[int, int]) -> tuple[int, int]:
    """Return (height, width), given as one number or two, or raise a ValueError that names the argument."""
    sizes = (size, size) if isinstance(size, Integral) else size
    height, width = whole_numbers(name, sizes, "one number or (height, width)", 2)
    return height, width


def whole_numbers(name: str, sizes: Any, expected: str, count: int) -> tuple[int, ...]:
    """Return ``count`` integers as a tuple, or raise a ValueError that says what was expected."""
    given = tuple(sizes) if isinstance(sizes, tuple | list) else ()
    if len(given) != count or not all(isinstance(size, Integral) for size in given):
        raise ValueError(f"`{name}` must be {expected}, but is {sizes!r}.")
    return given


def grid_shape(whole: tuple[str, tuple[int, ...]], part: tuple[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the number of parts along each axis of the whole; both are given as (name, sizes)."""
    (whole_name, sizes), (part_name, parts) = whole, part
    if any(size < 1 for size in (*sizes, *parts)):
        raise ValueError(f"`{whole_name}` and `{part_name}` must be positive, but are {sizes} and {parts}.")
    if any(size % step for size, step in zip(sizes, parts, strict=True)):
        raise ValueError(f"`{whole_name}` must be a multiple of `{part_name}`, but they are {sizes} and {parts}.")
    return tuple(size // step for size, step in zip(sizes, parts, strict=True))


def check_shape(name: str, x: Tensor, expected: tuple[int, ...], fix: str) -> None:
    """Raise a ValueError that ends with the fix, unless x has shape [B, *expected]."""
    if x.shape[1:] != expected:
        text = ", ".join(map(str, expected))
        raise ValueError(f"`{name}` must have shape [B, {text}], but has shape {tuple(x.shape)}. {fix}")
