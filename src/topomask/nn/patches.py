"""Tokens of images and videos."""

from __future__ import annotations

import math

from torch import Tensor, nn


class PatchEmbedding(nn.Module):
    """Cut images, or videos, into patches and map each of them to a token, as a convolution with a stride does.

    Args:
        in_channels: Channels.
        dim: Width of the tokens.
        patch_shape: Size of a patch along every axis: (height, width) for images, (frames, height, width) for videos.

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
        """[B, channels, *sizes] to tokens on a grid, [B, *grid, C]."""
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
        return self.projection(x.flatten(1 + axes))
