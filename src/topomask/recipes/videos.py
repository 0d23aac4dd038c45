"""Recipes for videos: a factorised encoder, over space and then over time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from torch import Tensor

from topomask.data import LabelledSet
from topomask.models import VideoTransformerConfig
from topomask.recipes.experiment import fill
from topomask.recipes.labelled import LabelledData, LabelledExperiment, square
from topomask.train import OptimConfig, TrainConfig


@dataclass(frozen=True, kw_only=True)
class VideoExperiment(LabelledExperiment):
    """A video transformer and its videos.

    Args:
        model: The model.
    """

    model: VideoTransformerConfig = field(default_factory=VideoTransformerConfig)

    def _fit_model(self, found: LabelledSet) -> Self:
        if found.num_frames is None:
            raise ValueError(f"`data.name` is {self.data.name!r}, which holds pictures. Take a recipe for pictures.")
        channels, height, width = found.image_shape
        shape = {"num_frames": found.num_frames, "image_size": square(height, width), "in_channels": channels}
        return replace(self, model=fill(self.model, **shape, num_classes=found.num_classes))

    def read(self, path: Path) -> Tensor:
        """A video as the data set would have it."""
        # Training reads no single files.
        from topomask.data import read_video

        num_frames, size, channels = self.model.num_frames, self.model.image_size, self.model.in_channels
        assert num_frames is not None, "fitted() comes first"
        assert size is not None
        assert channels is not None
        return read_video(path, num_frames, size, channels)


def moving_digits() -> VideoExperiment:
    """Generated videos of digits that move or turn in one of ten ways."""
    return VideoExperiment(
        recipe="moving-digits",
        data=LabelledData("moving-digits", batch_size=32),
        model=VideoTransformerConfig(tubelet_size=(2, 8, 8), dim=64, depth=3, temporal_depth=2, num_heads=4),
        train=TrainConfig(OptimConfig(lr=1e-3, warmup=0.1, decay=0.9, weight_decay=0.01), epochs=20),
    )


def video_folder() -> VideoExperiment:
    """Your videos, in folders train/<class>/*, val/<class>/*: set data.path."""
    return VideoExperiment(
        recipe="video-folder",
        data=LabelledData("video-folder", path=Path("videos"), size=64, num_frames=16, batch_size=32, flip=True),
        model=VideoTransformerConfig(dim=192, depth=6, num_heads=3),
        train=TrainConfig(OptimConfig(lr=1e-3, warmup=0.1, decay=0.9, weight_decay=0.05), epochs=30),
    )
