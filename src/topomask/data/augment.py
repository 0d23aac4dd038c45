"""Augmentation and normalisation of batches, with random numbers from an explicit generator.

All functions act on the last dimensions, [..., C, H, W], so all frames of a video, [B, T, C, H, W], change alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor
from torch.nn import functional


def random_flip(images: Tensor, generator: torch.Generator, probability: float = 0.5) -> Tensor:
    """Flip images left to right at random.

    Args:
        images: [B, ..., C, H, W].
        generator: Source of randomness.
        probability: Probability of a flip.
    """
    chosen = _uniform(images, generator) < probability
    return torch.where(chosen.view(-1, *[1] * (images.ndim - 1)), images.flip(-1), images)


def random_crop(images: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """Pad images with zeros, and crop each at random to its original size: a shift by up to `padding` pixels.

    Args:
        images: [B, ..., C, H, W].
        padding: Pixels of zeros on each side.
        generator: Source of randomness.
    """
    if padding < 0:
        raise ValueError(f"`padding` must be at least 0 pixels, but is {padding}.")
    height, width = images.shape[-2:]
    top, left = ((_uniform(images, generator) * (2 * padding + 1)).long() for _ in range(2))
    rows = top[:, None] + torch.arange(height, device=images.device)  # [B, H]
    columns = left[:, None] + torch.arange(width, device=images.device)  # [B, W]
    planes = functional.pad(images.flatten(1, -3), (padding,) * 4)  # [B, X, H + 2 padding, W + 2 padding]
    batch = torch.arange(len(images), device=images.device)[:, None, None, None]
    plane = torch.arange(planes.shape[1], device=images.device)[None, :, None, None]
    return planes[batch, plane, rows[:, None, :, None], columns[:, None, None, :]].view(images.shape)


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Normalise images, ``(image - mean) / std`` in each channel, as float32.

    Args:
        images: uint8, or floating point in [0, 1], [..., C, H, W].
        mean: One per channel, in [0, 1].
        std: One per channel, positive.
    """
    channels = images.shape[-3]
    if not len(mean) == len(std) == channels or not min(std) > 0:
        raise ValueError(
            f"`mean` and `std` must have one value for each of {channels} channels, and `std` must be positive, but "
            f"they are {tuple(mean)} and {tuple(std)}."
        )
    scale = 255.0 if images.dtype == torch.uint8 else 1.0
    shift, factor = (torch.tensor(values, device=images.device).view(-1, 1, 1) * scale for values in (mean, std))
    return (images.float() - shift) / factor


@final
@dataclass(frozen=True)
class Augment:
    """Augments and normalises a batch of images or videos.

    Videos are passed as frames, [B, T, C, H, W], and returned in the layout of models, [B, C, T, H, W].

    Args:
        mean: Mean of each channel, as in data sets.
        std: Standard deviation of each channel, likewise.
        flip: Flip half of the images left to right.
        padding: Shift images by up to this many pixels.

    Example:
        >>> augment = Augment(mean=(0.5,), std=(0.5,), flip=True, padding=1)
        >>> images = torch.full((4, 1, 8, 8), 255, dtype=torch.uint8)
        >>> augment(images, torch.Generator().manual_seed(0)).shape
        torch.Size([4, 1, 8, 8])
        >>> bool((augment.without_draws()(images) == 1).all())
        True
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool = False
    padding: int = 0

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return normalised images, float32; random augmentation needs `generator`."""
        if generator is not None:
            images = random_flip(images, generator) if self.flip else images
            images = random_crop(images, self.padding, generator) if self.padding else images
        elif self.flip or self.padding:
            raise ValueError(
                "Random augmentation needs `generator`, so that a resumed run repeats it. Pass one, or use "
                "`without_draws()` for evaluation."
            )
        images = normalize(images, self.mean, self.std)
        return images.transpose(1, 2) if images.ndim == 5 else images

    def without_draws(self) -> Augment:
        """Return the same normalisation without random augmentation, for evaluation."""
        return replace(self, flip=False, padding=0)


def _uniform(images: Tensor, generator: torch.Generator) -> Tensor:
    """One number in [0, 1) per example; the generator may be on another device than the images."""
    if images.ndim < 4:
        raise ValueError(f"`images` must have shape [B, ..., C, H, W], but has shape {tuple(images.shape)}.")
    return torch.rand(len(images), generator=generator, device=generator.device).to(images.device)
