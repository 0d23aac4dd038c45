"""Data sets by name."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from topomask.data.labelled_set import to_memory
from topomask.data.root import find_path
from topomask.support.checks import check_options, look_up


@dataclass(frozen=True)
class Entry:
    """A data set that can be loaded by name.

    Args:
        home: The module of :mod:`topomask.data` and the class or function in it that makes the set, as in
            ``"cifar:cifar10"``; imported when the set is loaded.
        held_out: The split to evaluate on.
        summary: A short description.
        in_memory: Default of the option ``in_memory`` of :func:`load`; None for sets without this option.
    """

    home: str
    held_out: str
    summary: str
    in_memory: bool | None = None

    @property
    def make(self) -> Callable[..., Dataset[Any]]:
        """The class or function that makes the data set from `split` and the options."""
        return pkgutil.resolve_name(f"topomask.data.{self.home}")

    def options(self) -> tuple[str, ...]:
        """Names of the options, without `split` and `root`."""
        names = [name for name in inspect.signature(self.make).parameters if name not in ("split", "root")]
        return (*names, *["in_memory"] * (self.in_memory is not None))


ENTRIES: dict[str, Entry] = {
    "cifar10": Entry("cifar:cifar10", "test", "50,000 + 10,000 colour images of 32 x 32 in 10 classes"),
    "digits": Entry("digits:digits", "test", "1,797 handwritten digits of 8 x 8, part of scikit-learn"),
    "fashion-mnist": Entry("mnist:fashion_mnist", "test", "60,000 + 10,000 grey images of clothes, 28 x 28"),
    "image-folder": Entry(
        "class_folders:ImageFolder", "val", "any folder or zip archive of train/<class>/*.jpg, val/<class>/*.jpg", False
    ),
    "mnist": Entry("mnist:mnist", "test", "60,000 + 10,000 handwritten digits of 28 x 28"),
    "moving-digits": Entry("moving_digits:MovingDigits", "test", "generated videos of digits in 10 motions", True),
    "particles": Entry("particles:ParticleSet", "test", "generated trajectories of soft bodies that fall on a floor"),
    "tiny-imagenet-50": Entry(
        "tiny_imagenet:tiny_imagenet_50", "val", "25,000 + 2,500 colour images of 64 x 64 in 50 classes"
    ),
    "video-folder": Entry(
        "class_folders:VideoFolder", "val", "any folder of train/<class>/*.mp4, val/<class>/*.mp4", False
    ),
}


def load(name: str, root: str | Path | None = None, split: str = "train", **options: Any) -> Any:
    """Load a data set by name.

    Args:
        name: One of the keys of :data:`topomask.data.ENTRIES`.
        root: The data root, see :func:`topomask.data.data_root`; generated sets ignore it. A relative option ``path``
            that does not exist is looked up below it.
        split: ``"train"``, ``"val"`` or ``"test"``, if the set has it.
        options: Options of the set, such as ``download=True`` or ``limit=1000``. Image folders, video folders and
            moving digits also take ``in_memory``: read or generate everything now and keep it, 131 MB for the default
            moving digits, where it is the default.

    Example:
        >>> images = load("digits", split="test")
        >>> images.num_classes, images.image_shape
        (10, (1, 8, 8))
    """
    entry = look_up(ENTRIES, "data set", name)
    check_options(f"data set {name!r}", options, entry.options())
    accepted = inspect.signature(entry.make).parameters
    for option, parameter in accepted.items():
        if parameter.default is inspect.Parameter.empty and option not in options:
            raise ValueError(
                f"The data set {name!r} needs the option {option!r}. Pass {option}=... (on the command line: "
                f"--data.{option} ...)."
            )
    in_memory = options.pop("in_memory", entry.in_memory) if entry.in_memory is not None else False
    if "root" in accepted:
        options["root"] = root
    elif "path" in options:
        options["path"] = find_path(options["path"], root)
    found: Any = entry.make(split=split, **options)
    return to_memory(found) if in_memory else found
