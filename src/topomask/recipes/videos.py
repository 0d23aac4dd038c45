"""Recipes for videos: factorised encoders, first over space and then over time."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from topomask.models import VideoTransformerConfig
from topomask.recipes.labelled import LabelledData, LabelledExperiment
from topomask.train import OptimConfig, TrainConfig


@dataclass(frozen=True, kw_only=True)
class VideoExperiment(LabelledExperiment):
    """A video transformer and its videos."""

    of_videos = True

    model: VideoTransformerConfig = field(default_factory=VideoTransformerConfig)


def moving_digits() -> VideoExperiment:
    """Generated videos of digits that move or rotate in one of ten ways."""
    return VideoExperiment(
        recipe="moving-digits",
        data=LabelledData("moving-digits", batch_size=32),
        model=VideoTransformerConfig(tubelet_size=(2, 8, 8), dim=64, depth=3, temporal_depth=2, num_heads=4),
        train=TrainConfig(OptimConfig(lr=1e-3, warmup=0.1, decay=0.9, weight_decay=0.01), epochs=20),
    )


def video_folder() -> VideoExperiment:
    """Your own videos, in folders train/<class>/*, val/<class>/*: set data.path."""
    return VideoExperiment(
        recipe="video-folder",
        data=LabelledData("video-folder", path=Path("videos"), size=64, num_frames=16, batch_size=32, flip=True),
        model=VideoTransformerConfig(dim=192, depth=6, num_heads=3),
        train=TrainConfig(OptimConfig(lr=1e-3, warmup=0.1, decay=0.9, weight_decay=0.05), epochs=30),
    )
