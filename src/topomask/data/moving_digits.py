"""Generated videos of moving handwritten digits; the class is the motion."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from topomask.data.digits import digits
from topomask.data.labelled_set import LabelledSet
from topomask.data.splits import SPLITS, check_index, check_split, seeded_generator

_HALF = math.sqrt(0.5)
# Direction of the motion, right and down, as a unit vector, and direction of the turn: 1 is clockwise.
_MOTIONS: dict[str, tuple[float, float, int]] = {
    "right": (1, 0, 0),
    "down right": (_HALF, _HALF, 0),
    "down": (0, 1, 0),
    "down left": (-_HALF, _HALF, 0),
    "left": (-1, 0, 0),
    "up left": (-_HALF, -_HALF, 0),
    "up": (0, -1, 0),
    "up right": (_HALF, -_HALF, 0),
    "clockwise": (0, 0, 1),
    "counterclockwise": (0, 0, -1),
}
# Lengths as fractions of the canvas. The largest digit with the largest tilt, on the longest path that is farthest off
# the centre, stays on the canvas: 0.5 * 0.4 + 0.08 + 0.5 * 0.35 * (cos 15 + sin 15 degrees) < 0.5.
_PATH = (0.25, 0.40)
_SIZE = (0.25, 0.35)
_OFF_CENTRE = 0.08
_TILT = math.radians(15)
_TURN = (math.radians(60), math.radians(150))


@final
class MovingDigits(LabelledSet):
    """Videos of one digit that moves in one of eight directions or turns in place.

    A digit of scikit-learn is scaled up and drawn with sub-pixel motion on a black canvas. The digit, its size, speed
    and position are drawn from (seed, split, index), in the same way for all motions: the midpoint of the path has the
    same distribution in all classes. Classes alternate, so they are balanced. The splits use different digits. Do not
    flip the videos: left would be labelled right.

    Args:
        split: ``"train"``, ``"val"`` or ``"test"``.
        num_videos: Number of videos. Default: 2,000 for training, else 500.
        num_frames: Frames per video, at least 2.
        size: Height and width of the canvas, at least 16.
        still_digits: Number of other digits, which do not move and carry no information.
        noise: Standard deviation of the noise on each pixel, with white 1.
        seed: Seed of all random numbers.

    Example:
        >>> videos = MovingDigits("train", num_videos=20, num_frames=8, size=32)
        >>> video, label = videos[2]
        >>> video.shape, videos.classes[label]
        (torch.Size([8, 1, 32, 32]), 'down')
    """

    classes = tuple(_MOTIONS)
    mean = (0.0660,)
    std = (0.1416,)

    def __init__(
        self,
        split: str = "train",
        *,
        num_videos: int | None = None,
        num_frames: int = 16,
        size: int = 64,
        still_digits: int = 0,
        noise: float = 0.1,
        seed: int = 0,
    ) -> None:
        check_split(split, SPLITS, "moving-digits")
        num_videos = (2000 if split == "train" else 500) if num_videos is None else num_videos
        if num_videos < 1 or num_frames < 2 or size < 16:
            raise ValueError(
                "`num_videos` must be at least 1, `num_frames` at least 2 and `size` at least 16, but are "
                f"{num_videos}, {num_frames} and {size}."
            )
        if still_digits < 0 or noise < 0:
            raise ValueError(f"`still_digits` and `noise` must be at least 0, but are {still_digits} and {noise}.")
        images = digits(split, test_fraction=0.2, val_fraction=0.1).inputs.float() / 255.0
        # Scaled up smoothly to about the size at which they are drawn: coarser shows pixels, finer flickers.
        height = max(8, round(size * sum(_SIZE) / 2))
        scaled = functional.interpolate(images, size=(height, height), mode="bicubic", align_corners=False)
        self._glyphs = scaled.clamp_(0.0, 1.0)
        self._split = SPLITS.index(split)
        self.size, self.num_frames = size, num_frames
        self.still_digits, self.noise, self.seed = still_digits, noise, seed
        self.labels = torch.arange(num_videos) % len(self.classes)
        self.image_shape = (1, size, size)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        index = check_index(index, len(self))
        label = int(self.labels[index])
        generator = seeded_generator("moving digits", self.seed, self._split, index)
        video = self._draw(_MOTIONS[self.classes[label]], _OFF_CENTRE, generator)
        for _ in range(self.still_digits):
            video = torch.maximum(video, self._draw((0, 0, 0), 0.3, generator))
        if self.noise:
            video = video + self.noise * torch.randn(video.shape, generator=generator)
        return (video.clamp(0.0, 1.0) * 255.0).round().to(torch.uint8), label

    def _draw(self, motion: tuple[float, float, int], off_centre: float, generator: torch.Generator) -> Tensor:
        """Draw one moving digit, values in [0, 1], [T, 1, H, W]."""
        assert self.num_frames is not None
        right, down, turn = motion
        draws = torch.rand(7, generator=generator).tolist()
        glyph = self._glyphs[int(draws[0] * len(self._glyphs))]
        scale = _between(_SIZE, draws[1])
        time = torch.linspace(-0.5, 0.5, self.num_frames)  # [T]
        path, angle = _between(_PATH, draws[2]) * time, turn * _between(_TURN, draws[3]) * time
        angle = angle + _TILT * (2 * draws[4] - 1)
        # The canvas spans -1 to 1, so fractions of it are doubled.
        x = 2 * (right * path + off_centre * (2 * draws[5] - 1))
        y = 2 * (down * path + off_centre * (2 * draws[6] - 1))
        cos, sin = angle.cos() / scale, angle.sin() / scale
        # Maps positions on the canvas to positions on the digit: shift back, turn back, scale back.
        rows = (cos, sin, -(cos * x + sin * y), -sin, cos, sin * x - cos * y)
        affine = torch.stack(rows, dim=-1).view(-1, 2, 3)  # [T, 2, 3]
        grid = functional.affine_grid(affine, [self.num_frames, 1, self.size, self.size], align_corners=False)
        glyphs = glyph.expand(self.num_frames, -1, -1, -1)
        return functional.grid_sample(glyphs, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _between(bounds: tuple[float, float], share: float) -> float:
    return bounds[0] + (bounds[1] - bounds[0]) * share
