"""Images in class folders, on disk or in a zip archive: ``train/<class>/*.jpg``, ``val/<class>/*.jpg``."""

from __future__ import annotations

from pathlib import Path
from typing import final

from torch import Tensor

from topomask.data.class_folders import ClassFolders
from topomask.data.pictures import decode_image


@final
class ImageFolder(ClassFolders):
    """Colour images, decoded on access; grey ones are converted to colour.

    A zip archive is read without unpacking it, and each worker process opens its own handle. The classes are the
    folders of the training set in alphabetical order; a file ``classes.txt`` with lines ``folder<TAB>name`` can name
    them.

    Args:
        path: Folder or zip archive that contains ``<split>/<class>/<image>``.
        split: Name of the folder: ``"train"``, ``"val"`` or ``"test"``. Without a folder ``val``, ``"val"`` is held out
            of the training set; without any of them, the class folders are the training set.
        size: Resize images such that the shorter side has this many pixels, and crop them to a square. Default: keep
            their size, which must be the same for all.
        val_fraction: Fraction of the training set to hold out as ``"val"``.
        split_seed: Seed of the held-out part.
        per_class: Keep only the first this many images of each class.
    """

    mean = (0.485, 0.456, 0.406)
    std = (0.229, 0.224, 0.225)
    suffixes = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff"})
    what = "images"

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
        super().__init__(Path(path), split, val_fraction=val_fraction, split_seed=split_seed, per_class=per_class)
        self.size = size
        # The first image decides the size of the others.
        height, width = (size, size) if size is not None else self._decode(0).shape[-2:]
        self.image_shape = (3, height, width)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self._decode(index)
        if tuple(image.shape) != self.image_shape:
            raise ValueError(
                f"{self._describe(index)} has {image.shape[1]} x {image.shape[2]} pixels, but the first image has "
                f"{self.image_shape[1]} x {self.image_shape[2]}. Pass size=... to resize all images."
            )
        return image, int(self.labels[index])

    def _decode(self, index: int) -> Tensor:
        try:
            return decode_image(self._read(index), self.size)
        except ValueError as error:
            raise ValueError(f"{self._describe(index)} cannot be read as an image: {error}") from error
