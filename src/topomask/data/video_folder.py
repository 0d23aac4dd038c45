"""Videos in class folders: ``train/<class>/*.mp4``, ``val/<class>/*.mp4``."""

from __future__ import annotations

from pathlib import Path
from typing import final

from torch import Tensor

from topomask.data.class_folders import ClassFolders
from topomask.data.pictures import read_video
from topomask.support.imports import need


@final
class VideoFolder(ClassFolders):
    """Videos, decoded by PyAV on access; frames are sampled evenly over the whole video.

    A video shorter than `num_frames` repeats frames. The classes are the folders of the training set in alphabetical
    order; a file ``classes.txt`` with lines ``folder<TAB>name`` can name them.

    Args:
        path: Folder that contains ``<split>/<class>/<video>``.
        split: Name of the folder: ``"train"``, ``"val"`` or ``"test"``. Without a folder ``val``, ``"val"`` is held out
            of the training set; without any of them, the class folders are the training set.
        num_frames: Frames per video.
        size: Resize frames such that the shorter side has this many pixels, and crop them to a square.
        val_fraction: Fraction of the training set to hold out as ``"val"``.
        split_seed: Seed of the held-out part.
        per_class: Keep only the first this many videos of each class.
    """

    mean = (0.45, 0.45, 0.45)
    std = (0.225, 0.225, 0.225)
    suffixes = frozenset({".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg"})
    what = "videos"

    def __init__(
        self,
        path: str | Path,
        split: str = "train",
        *,
        num_frames: int = 16,
        size: int = 64,
        val_fraction: float = 0.0,
        split_seed: int = 0,
        per_class: int | None = None,
    ) -> None:
        if num_frames < 1 or size < 1:
            raise ValueError(f"`num_frames` and `size` must be at least 1, but are {num_frames} and {size}.")
        path = Path(path)
        if path.is_file():
            raise ValueError(f"`path` must be a folder, but {path} is a file. Videos are not read from archives.")
        need("av", "Reading videos")
        super().__init__(path, split, val_fraction=val_fraction, split_seed=split_seed, per_class=per_class)
        self.size, self.num_frames = size, num_frames
        self.image_shape = (3, size, size)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        assert self.num_frames is not None
        return read_video(self._tree.locate(self._files[index]), self.num_frames, self.size), int(self.labels[index])
