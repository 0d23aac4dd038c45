"""Experiments that classify pictures and videos."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor
from tyro.conf import Suppress

from topomask.data import ENTRIES, Augment, Batches, LabelledSet, data_root, load
from topomask.recipes.experiment import Experiment, fill
from topomask.support.checks import check_options
from topomask.train import Classification, Task


@dataclass(frozen=True)
class LabelledData:
    """A data set with classes, and its augmentation. None is the default of the data set.

    Args:
        name: Name of the data set, see topomask list data.
        root: Folder of data sets; None is $TOPOMASK_DATA, or a folder in the user's cache.
        path: Folder or archive, for data sets of your own.
        download: Download missing files.
        size: Height and width, for data sets that can be resized.
        num_frames: Frames per video.
        num_videos: Number of videos, for generated data sets.
        limit: Use only this many training examples, the first ones.
        per_class: Use only this many examples of every class, the first ones.
        val_fraction: Fraction of the training set (for digits: of all pictures) to hold out for validation; replaces
            the test set in evaluations.
        batch_size: Examples per step, over all processes.
        flip: Mirror half of the training examples.
        shift: Shift training examples by up to this many pixels.
    """

    name: str
    root: Path | None = None
    path: Path | None = None
    download: bool | None = None
    size: int | None = None
    num_frames: int | None = None
    num_videos: int | None = None
    limit: int | None = None
    per_class: int | None = None
    val_fraction: float | None = None
    batch_size: int = 64
    flip: bool = False
    shift: int = 0

    @property
    def held_out(self) -> str:
        """The split to evaluate on."""
        return "val" if self.val_fraction else ENTRIES[self.name].held_out

    def load(self, split: str) -> LabelledSet:
        """Load a split of the data set."""
        names = ["path", "download", "size", "num_frames", "per_class", "val_fraction"]
        names += ["num_videos", "limit"] if split == "train" else []
        options = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        known = ENTRIES[self.name].options() if self.name in ENTRIES else options
        fields = (field.name for field in dataclasses.fields(self) if field.name in known)
        check_options(f"data set {self.name!r}", options, fields)
        return _load(self.name, data_root(self.root), split, tuple(options.items()))


# An experiment loads its data more than once, and a table has many experiments on the same data.
@lru_cache(maxsize=4)
def _load(name: str, root: Path, split: str, options: tuple[tuple[str, Any], ...]) -> LabelledSet:
    return load(name, root, split, **dict(options))


@dataclass(frozen=True)
class Facts:
    """What a trained model needs to know: class names, and mean and standard deviation per channel (white is 1)."""

    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class LabelledExperiment(Experiment):
    """A classifier and its data; subclasses add the group ``model``.

    Args:
        data: The data set.
        label_smoothing: Probability spread evenly over all classes, in training only.
        facts: Facts about the data, filled in when the run starts.
    """

    predicts_files: ClassVar[bool] = True
    of_videos: ClassVar[bool]

    data: LabelledData
    label_smoothing: float = 0.0
    facts: Suppress[Facts | None] = None

    @property
    def held_out(self) -> str:
        """The split to evaluate on."""
        return self.data.held_out

    def fitted(self) -> Self:
        """Return a copy with shapes and classes of the data."""
        found = self.data.load("train")
        if not isinstance(found, LabelledSet):
            raise ValueError(f"`data.name` is {self.data.name!r}, which has no classes. Use another data set.")
        if self.of_videos != (found.num_frames is not None):
            kind = "pictures" if self.of_videos else "videos"
            raise ValueError(f"`data.name` is {self.data.name!r}, which contains {kind}. Use a recipe for {kind}.")
        channels, height, width = found.image_shape
        shape: dict[str, Any] = {"image_size": height if height == width else (height, width), "in_channels": channels}
        if self.of_videos:
            shape["num_frames"] = found.num_frames
        model = fill(self.model, **shape, num_classes=found.num_classes)  # type: ignore[attr-defined]
        facts = Facts(tuple(found.classes), tuple(found.mean), tuple(found.std))
        return replace(self, model=model, facts=facts)  # type: ignore[call-arg]

    def read(self, path: Path) -> Tensor:
        """Read a picture or video in the format of the data set."""
        # Imported here, since training does not read single files.
        from topomask.data import read_image, read_video

        model: Any = self.model  # type: ignore[attr-defined]
        if self.of_videos:
            return read_video(path, model.num_frames, model.image_size, model.in_channels)
        return read_image(path, model.image_size, model.in_channels)

    def augment(self) -> Augment:
        """The augmentation of training examples."""
        assert self.facts is not None, "call fitted() first"
        return Augment(self.facts.mean, self.facts.std, flip=self.data.flip, padding=self.data.shift)

    def batches(self, split: str, training: bool = False) -> Batches:
        """Batches of a split."""
        assert self.facts is not None, "call fitted() first"
        augment = self.augment() if training else self.augment().without_draws()
        found, size = self.data.load(split), self.data.batch_size
        if tuple(found.classes) != self.facts.classes:
            raise ValueError(
                f"The classes of {split!r} must be those of the model, {_listed(self.facts.classes)}, but are "
                f"{_listed(found.classes)}. Restore the original data, or train again."
            )
        return Batches(found, size, seed=self.train.seed, shuffle=training, transform=augment)

    def task(self) -> Task:
        """Cross entropy and accuracy."""
        return Classification(self.label_smoothing)


def _listed(classes: Sequence[str]) -> str:
    return f"{', '.join(classes[:5])}{', ...' if len(classes) > 5 else ''} ({len(classes)})"
