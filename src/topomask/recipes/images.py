"""Recipes for pictures: vision transformers with masks on the grid of patches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from topomask.models import VisionTransformerConfig
from topomask.recipes.labelled import LabelledData, LabelledExperiment
from topomask.train import OptimConfig, TrainConfig


@dataclass(frozen=True, kw_only=True)
class ImageExperiment(LabelledExperiment):
    """A vision transformer and its pictures."""

    of_videos = False

    model: VisionTransformerConfig = field(default_factory=VisionTransformerConfig)


def digits() -> ImageExperiment:
    """Digits of 8 x 8 pixels, one token per pixel: a minute on two cores."""
    return ImageExperiment(
        recipe="digits",
        data=LabelledData("digits"),
        model=VisionTransformerConfig(patch_size=1, dim=32, depth=3, num_heads=4, mlp_ratio=2.0, pooling="mean"),
        train=TrainConfig(OptimConfig(lr=6e-3, warmup=0.1, decay=0.9, weight_decay=0.01), epochs=40),
    )


def fashion_mnist() -> ImageExperiment:
    """Clothes of 28 x 28 pixels in patches of 2 x 2: a 14 x 14 grid."""
    return ImageExperiment(
        recipe="fashion-mnist",
        data=LabelledData("fashion-mnist", limit=12_000),
        model=VisionTransformerConfig(patch_size=2, dim=64, depth=3, num_heads=4, mlp_ratio=2.0, pooling="mean"),
        train=TrainConfig(OptimConfig(lr=2e-3, warmup=0.1, decay=0.9, weight_decay=0.01), epochs=10, log_every=50),
    )


def mnist() -> ImageExperiment:
    """Handwritten digits of 28 x 28 pixels in patches of 2 x 2: a 14 x 14 grid."""
    return replace(fashion_mnist(), recipe="mnist", data=LabelledData("mnist", limit=12_000))


def cifar10() -> ImageExperiment:
    """Colour pictures of 32 x 32 pixels in patches of 2 x 2: the paper's 16 x 16 grid."""
    return ImageExperiment(
        recipe="cifar10",
        data=LabelledData("cifar10", flip=True, shift=4, batch_size=128),
        label_smoothing=0.1,
        model=VisionTransformerConfig(patch_size=2, dim=192, depth=6, num_heads=3, mlp_ratio=2.0, pooling="mean"),
        train=TrainConfig(OptimConfig(lr=1e-3, warmup=0.1, decay=0.9, weight_decay=0.05), epochs=50),
    )


def tiny_imagenet_50() -> ImageExperiment:
    """Colour pictures of 64 x 64 pixels in 50 classes, in patches of 4 x 4: the paper's 16 x 16 grid."""
    return ImageExperiment(
        recipe="tiny-imagenet-50",
        data=LabelledData("tiny-imagenet-50", flip=True, shift=4, batch_size=128),
        label_smoothing=0.1,
        model=VisionTransformerConfig(patch_size=4, dim=128, depth=4, num_heads=4, mlp_ratio=2.0, pooling="mean"),
        train=TrainConfig(OptimConfig(lr=1e-3, warmup=0.1, decay=0.9, weight_decay=0.05), epochs=20, log_every=50),
    )


def image_folder() -> ImageExperiment:
    """Your own pictures, in folders or a zip archive of train/<class>/*, val/<class>/*: set data.path."""
    return ImageExperiment(
        recipe="image-folder",
        data=LabelledData("image-folder", path=Path("images"), size=64, flip=True, shift=4),
        label_smoothing=0.1,
        model=VisionTransformerConfig(patch_size=4, dim=192, depth=6, num_heads=3, pooling="mean"),
        train=TrainConfig(OptimConfig(lr=1e-3, warmup=0.1, decay=0.9, weight_decay=0.05), epochs=50),
    )


def imagenet_paper() -> ImageExperiment:
    """ViT-B/16 as in the paper's Table 2, for ImageNet as class folders: set data.path. Untested at full scale."""
    return ImageExperiment(
        recipe="imagenet-paper",
        data=LabelledData("image-folder", path=Path("imagenet"), size=256, batch_size=4096, flip=True),
        model=VisionTransformerConfig.preset("paper-imagenet"),
        # 10,000 of 28,125 steps; the paper does not say when the decay begins.
        train=TrainConfig(OptimConfig(name="adam", lr=3e-3, final_lr=1e-5, warmup=0.36, decay=0.5), epochs=90),
    )
