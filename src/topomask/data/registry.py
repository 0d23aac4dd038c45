"""Data sets by name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from topomask.support.near_names import check_options, did_you_mean


@dataclass(frozen=True)
class Entry:
    """A data set that can be loaded by name.

    Args:
        home: The module of :mod:`topomask.data` that it lives in, and its function of the split and options, as in
            ``"cifar:cifar10"``; imported when the set is asked for.
        held_out: The split that is evaluated on.
        summary: What it is, in a few words.
    """

    home: str
    held_out: str
    summary: str

    @property
    def make(self) -> Callable[..., Dataset[Any]]:
        """The function of the split and options that makes the data set."""
        module, _, function = self.home.partition(":")
        make: Callable[..., Dataset[Any]] = getattr(importlib.import_module(f"topomask.data.{module}"), function)
        return make

    def options(self) -> tuple[str, ...]:
        """Names of the options, `split` and `root` aside."""
        return tuple(name for name in inspect.signature(self.make).parameters if name not in ("split", "root"))


ENTRIES: dict[str, Entry] = {
    "cifar10": Entry("cifar:cifar10", "test", "50,000 + 10,000 colour pictures of 32 x 32 in 10 classes"),
    "digits": Entry("digits:digits", "test", "1,797 handwritten digits of 8 x 8, part of scikit-learn"),
    "fashion-mnist": Entry("mnist:fashion_mnist", "test", "60,000 + 10,000 grey pictures of clothes, 28 x 28"),
    "image-folder": Entry(
        "image_folder:image_folder", "val", "any folder or zip archive of train/<class>/*.jpg, val/<class>/*.jpg"
    ),
    "mnist": Entry("mnist:mnist", "test", "60,000 + 10,000 handwritten digits of 28 x 28"),
    "moving-digits": Entry("moving_digits:moving_digits", "test", "generated videos of digits in 10 motions"),
    "particles": Entry("particles:ParticleSet", "test", "generated trajectories of soft bodies that fall on a floor"),
    "tiny-imagenet-50": Entry(
        "tiny_imagenet:tiny_imagenet_50", "val", "25,000 + 2,500 colour pictures of 64 x 64 in 50 classes"
    ),
    "video-folder": Entry("video_folder:video_folder", "val", "any folder of train/<class>/*.mp4, val/<class>/*.mp4"),
}


def load(name: str, root: str | Path | None = None, split: str = "train", **options: Any) -> Any:
    """A data set by its name.

    Args:
        name: One of the keys of :data:`topomask.data.ENTRIES`.
        root: The data root, see :func:`topomask.data.data_root`; sets that are generated need none.
        split: ``"train"``, ``"val"`` or ``"test"``, as far as the set has them.
        options: Options of the set, such as ``download=True`` or ``limit=1000``.

    Example:
        >>> pictures = load("digits", split="test")
        >>> pictures.num_classes, pictures.image_shape
        (10, (1, 8, 8))
    """
    if name not in ENTRIES:
        known = f"{did_you_mean(name, ENTRIES)} There are: {', '.join(ENTRIES)}."
        raise ValueError(f"`name` is {name!r}, but there is no such data set.{known}")
    entry = ENTRIES[name]
    check_options(f"data set {name!r}", options, entry.options())
    accepted = inspect.signature(entry.make).parameters
    for option in entry.options():
        if accepted[option].default is inspect.Parameter.empty and option not in options:
            raise ValueError(
                f"The data set {name!r} needs the option {option!r}. Pass {option}=... (on the command line: "
                f"--data.{option} ...)."
            )
    if "root" in accepted:
        options["root"] = root
    return entry.make(split, **options)
