"""Data sets by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from topomask.data.cifar import cifar10
from topomask.data.digits import digits
from topomask.data.image_folder import image_folder
from topomask.data.mnist import fashion_mnist, mnist
from topomask.data.moving_digits import moving_digits
from topomask.data.particles import ParticleSet
from topomask.data.tiny_imagenet import tiny_imagenet_50
from topomask.data.video_folder import video_folder
from topomask.near_names import did_you_mean


@dataclass(frozen=True)
class Entry:
    """A data set that can be loaded by name.

    Args:
        make: A function of the split and options that makes the data set.
        held_out: The split that is evaluated on.
        summary: What it is, in a few words.
    """

    make: Callable[..., Dataset[Any]]
    held_out: str
    summary: str

    def options(self) -> tuple[str, ...]:
        """Names of the options, `split` and `root` aside."""
        return tuple(name for name in inspect.signature(self.make).parameters if name not in ("split", "root"))


ENTRIES: dict[str, Entry] = {
    "cifar10": Entry(cifar10, "test", "50,000 + 10,000 colour pictures of 32 x 32 in 10 classes"),
    "digits": Entry(digits, "test", "1,797 handwritten digits of 8 x 8, part of scikit-learn"),
    "fashion-mnist": Entry(fashion_mnist, "test", "60,000 + 10,000 grey pictures of clothes, 28 x 28"),
    "image-folder": Entry(image_folder, "val", "any folder or zip archive of train/<class>/*.jpg, val/<class>/*.jpg"),
    "mnist": Entry(mnist, "test", "60,000 + 10,000 handwritten digits of 28 x 28"),
    "moving-digits": Entry(moving_digits, "test", "generated videos of digits in 10 motions"),
    "particles": Entry(ParticleSet, "test", "generated trajectories of soft bodies that fall on a floor"),
    "tiny-imagenet-50": Entry(tiny_imagenet_50, "val", "25,000 + 2,500 colour pictures of 64 x 64 in 50 classes"),
    "video-folder": Entry(video_folder, "val", "any folder of train/<class>/*.mp4, val/<class>/*.mp4"),
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
        raise ValueError(f"`name` is {name!r}, but there is no such data set.{_suggest(name, ENTRIES)}")
    entry = ENTRIES[name]
    for option in options:
        if option not in entry.options():
            raise ValueError(f"The data set {name!r} has no option {option!r}.{_suggest(option, entry.options())}")
    accepted = inspect.signature(entry.make).parameters
    for option in entry.options():
        if accepted[option].default is inspect.Parameter.empty and option not in options:
            raise ValueError(
                f"The data set {name!r} needs the option {option!r}. Pass {option}=... (on the command line: "
                f"data.{option}=...)."
            )
    if "root" in accepted:
        options["root"] = root
    return entry.make(split, **options)


def _suggest(word: str, known: Iterable[str]) -> str:
    known = sorted(known)
    return f"{did_you_mean(word, known)} There are: {', '.join(known)}."
