"""Pictures in class folders, on disk or in a zip archive: ``train/<class>/*.jpg``, ``val/<class>/*.jpg``."""

from __future__ import annotations

from pathlib import Path
from typing import final

from torch import Tensor

from topomask.data.class_folders import ClassFolders
from topomask.data.labelled_set import InMemorySet, LabelledSet, to_memory
from topomask.data.pictures import decode_image
from topomask.data.root import find_path

_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff"})


@final
class ImageFolder(LabelledSet):
    """Colour pictures, decoded when they are asked for; grey ones are turned into colour.

    A zip archive is read in place, and every worker process opens its own handle. The classes are the folders of the
    training set in alphabetical order; a file ``classes.txt`` with lines ``folder<TAB>name`` gives them names.

    Args:
        path: Folder or zip archive with ``<split>/<class>/<picture>`` inside.
        split: Name of the folder: ``"train"``, ``"val"`` or ``"test"``. Without a folder ``val``, ``"val"`` is held out
            of the training set, and without any of them, the class folders are the training set.
        size: Pictures are scaled so that the shorter side has so many pixels, and cut to a square. Default: as they
            are, all of one size.
        val_fraction: The share of the training set that is held out for ``"val"``.
        split_seed: Seed of what is held out.
        per_class: Keep the first so many of every class only.
    """

    mean = (0.485, 0.456, 0.406)
    std = (0.229, 0.224, 0.225)

    def __init__(
        self,
        path: str | Path,
        split: str = "train",
        *,
        size: int | None = None,
        val_fraction: float = 0.0,
        split_seed: int = 0,
        per_class: int | None = None,
    ) -> None:
        if size is not None and size < 1:
            raise ValueError(f"`size` must be at least 1 pixel, but is {size}.")
        self._files = ClassFolders(
            Path(path),
            split,
            _SUFFIXES,
            val_fraction=val_fraction,
            split_seed=split_seed,
            per_class=per_class,
            what="pictures",
        )
        self.size = size
        self.classes, self.labels = self._files.classes, self._files.labels
        # Only the first picture can say what the others should look like.
        height, width = (size, size) if size is not None else self._decode(0).shape[-2:]
        self.image_shape = (3, height, width)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self._decode(index)
        if tuple(image.shape) != self.image_shape:
            raise ValueError(
                f"{self._files.describe(index)} has {image.shape[1]} x {image.shape[2]} pixels, but the first picture "
                f"has {self.image_shape[1]} x {self.image_shape[2]}. Pass size=... to bring all to one size."
            )
        return image, int(self.labels[index])

    def _decode(self, index: int) -> Tensor:
        try:
            return decode_image(self._files.read(index), self.size)
        except ValueError as error:
            raise ValueError(f"{self._files.describe(index)} cannot be read as a picture: {error}") from error


def image_folder(
    split: str = "train",
    *,
    path: str | Path,
    root: str | Path | None = None,
    size: int | None = None,
    val_fraction: float = 0.0,
    split_seed: int = 0,
    per_class: int | None = None,
    in_memory: bool = False,
) -> ImageFolder | InMemorySet:
    """Any folder or zip archive of class folders, see :class:`ImageFolder`.

    Args:
        split: ``"train"``, ``"val"`` or ``"test"``.
        path: The folder or archive; a relative path may also start at the data root.
        root: The data root, see :func:`topomask.data.data_root`.
        size: Height and width of the pictures.
        val_fraction: The share of the training set that is held out for ``"val"``.
        split_seed: Seed of what is held out.
        per_class: Keep the first so many of every class only.
        in_memory: Decode everything now and keep it.
    """
    found = ImageFolder(
        find_path(path, root),
        split,
        size=size,
        val_fraction=val_fraction,
        split_seed=split_seed,
        per_class=per_class,
    )
    return to_memory(found) if in_memory else found
