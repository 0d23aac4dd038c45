"""Experiments on pictures and videos with classes."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor
from tyro.conf import Suppress

from topomask.data import ENTRIES, Augment, Batches, LabelledSet, data_root, load
from topomask.recipes.experiment import Experiment
from topomask.support.near_names import check_options
from topomask.train import Classification, Task


@dataclass(frozen=True)
class LabelledData:
    """A data set with classes, and what is done to it. Options that are None are those of the set.

    Args:
        name: Name of the set, see topomask list.
        root: The data root; None is $TOPOMASK_DATA, or a folder in the user's cache.
        path: Folder or archive, for sets that are one.
        download: Download what is not there.
        size: Height and width, for sets that can be scaled.
        num_frames: Frames of a video.
        num_videos: Videos, for sets that are generated.
        limit: Keep the first so many training examples only.
        per_class: Keep the first so many of every class only.
        val_fraction: Share of the training set (for digits: of all pictures) that is held out for validation, which
            then replaces the test set.
        batch_size: Examples per step, over all processes.
        flip: Mirror half of the training examples.
        shift: Shift training examples by up to so many pixels.
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
        """The split that is evaluated on."""
        return "val" if self.val_fraction else ENTRIES[self.name].held_out

    def load(self, split: str) -> LabelledSet:
        """A split of the set."""
        names = ("path", "download", "size", "num_frames", "num_videos", "per_class", "val_fraction")
        options = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.limit is not None and split == "train":
            options["limit"] = self.limit
        if self.num_videos is not None and split != "train":
            del options["num_videos"]
        self._check_options(options)
        return _load(self.name, data_root(self.root), split, tuple(options.items()))

    def _check_options(self, options: Iterable[str]) -> None:
        known = ENTRIES[self.name].options() if self.name in ENTRIES else options
        fields = (field.name for field in dataclasses.fields(self) if field.name in known)
        check_options(f"data set {self.name!r}", options, fields)


# An experiment asks for its sets more than once, and a table has many experiments on the same.
@lru_cache(maxsize=4)
def _load(name: str, root: Path, split: str, options: tuple[tuple[str, Any], ...]) -> LabelledSet:
    return load(name, root, split, **dict(options))


@dataclass(frozen=True)
class Facts:
    """What a trained model must know about its data.

    Args:
        classes: Names of the classes.
        mean: Mean of every channel, where white is 1.
        std: Standard deviation of every channel.
    """

    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class LabelledExperiment(Experiment):
    """A classifier and its data.

    Args:
        data: The data set.
        label_smoothing: Probability spread over all classes, in training.
        facts: What is known about the data; filled in when the run starts.
    """

    predicts_files: ClassVar[bool] = True

    data: LabelledData
    label_smoothing: float = 0.0
    facts: Suppress[Facts | None] = None

    @property
    def held_out(self) -> str:
        """The split that is evaluated on."""
        return self.data.held_out

    def fitted(self) -> Self:
        """The same with shapes, classes and their names taken from the data."""
        found = self.data.load("train")
        if not isinstance(found, LabelledSet):
            raise ValueError(f"`data.name` is {self.data.name!r}, which has no classes. Take another data set.")
        facts = Facts(tuple(found.classes), tuple(found.mean), tuple(found.std))
        return replace(self._fit_model(found), facts=facts)

    @abstractmethod
    def _fit_model(self, found: LabelledSet) -> Self:
        """The same with what the data decides of the model."""

    @abstractmethod
    def read(self, path: Path) -> Tensor:
        """A file as the data set would have it."""

    def augment(self) -> Augment:
        """What happens to training examples."""
        assert self.facts is not None, "fitted() comes first"
        return Augment(self.facts.mean, self.facts.std, flip=self.data.flip, padding=self.data.shift)

    def batches(self, split: str, training: bool = False) -> Batches:
        """Batches of a split."""
        augment = self.augment() if training else self.augment().without_draws()
        found, size = self.data.load(split), self.data.batch_size
        self._check_classes(split, tuple(found.classes))
        return Batches(found, size, seed=self.train.seed, shuffle=training, transform=augment)

    def _check_classes(self, split: str, found: tuple[str, ...]) -> None:
        assert self.facts is not None, "fitted() comes first"
        if found != self.facts.classes:
            raise ValueError(
                f"The classes of {split!r} must be those that the model was made for, {_listed(self.facts.classes)}, "
                f"but are {_listed(found)}. Bring the data back to what it was, or train anew."
            )

    def task(self) -> Task:
        """Cross entropy and accuracy."""
        return Classification(self.label_smoothing)


def _listed(classes: tuple[str, ...]) -> str:
    return f"{', '.join(classes[:5])}{', ...' if len(classes) > 5 else ''} ({len(classes)})"


def square(height: int, width: int) -> int | tuple[int, int]:
    """The size of a picture as models take it: one number for a square."""
    return height if height == width else (height, width)
