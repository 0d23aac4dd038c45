"""Videos in class folders: ``train/<class>/*.mp4``, ``val/<class>/*.mp4``."""

from __future__ import annotations

from pathlib import Path
from typing import final

from torch import Tensor

from topomask.data.class_folders import ClassFolders
from topomask.data.labelled_set import InMemorySet, LabelledSet, to_memory
from topomask.data.pictures import read_video
from topomask.data.root import find_path
from topomask.support.imports import need

_SUFFIXES = frozenset({".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg"})


@final
class VideoFolder(LabelledSet):
    """Videos, decoded by PyAV when they are asked for; frames are taken at even distances over the whole length.

    A video shorter than `num_frames` repeats frames. The classes are the folders of the training set in alphabetical
    order; a file ``classes.txt`` with lines ``folder<TAB>name`` gives them names.

    Args:
        path: Folder with ``<split>/<class>/<video>`` inside.
        split: Name of the folder: ``"train"``, ``"val"`` or ``"test"``. Without a folder ``val``, ``"val"`` is held out
            of the training set, and without any of them, the class folders are the training set.
        num_frames: Frames per video.
        size: Frames are scaled so that the shorter side has so many pixels, and cut to a square.
        val_fraction: The share of the training set that is held out for ``"val"``.
        split_seed: Seed of what is held out.
        per_class: Keep the first so many of every class only.
    """

    mean = (0.45, 0.45, 0.45)
    std = (0.225, 0.225, 0.225)

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
            raise ValueError(f"`path` must be a folder, but {path} is a file. Videos are not read out of archives.")
        need("av", "Reading videos")
        self._files = ClassFolders(
            path,
            split,
            _SUFFIXES,
            val_fraction=val_fraction,
            split_seed=split_seed,
            per_class=per_class,
            what="videos",
        )
        self.size, self.num_frames = size, num_frames
        self.image_shape = (3, size, size)
        self.classes, self.labels = self._files.classes, self._files.labels

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        assert self.num_frames is not None
        return read_video(self._files.path(index), self.num_frames, self.size), int(self.labels[index])


def video_folder(
    split: str = "train",
    *,
    path: str | Path,
    root: str | Path | None = None,
    num_frames: int = 16,
    size: int = 64,
    val_fraction: float = 0.0,
    split_seed: int = 0,
    per_class: int | None = None,
    in_memory: bool = False,
) -> VideoFolder | InMemorySet:
    """Any folder of class folders of videos, see :class:`VideoFolder`.

    Args:
        split: ``"train"``, ``"val"`` or ``"test"``.
        path: The folder; a relative path may also start at the data root.
        root: The data root, see :func:`topomask.data.data_root`.
        num_frames: Frames per video.
        size: Height and width of the frames.
        val_fraction: The share of the training set that is held out for ``"val"``.
        split_seed: Seed of what is held out.
        per_class: Keep the first so many of every class only.
        in_memory: Decode everything now and keep it.
    """
    found = VideoFolder(
        find_path(path, root),
        split,
        num_frames=num_frames,
        size=size,
        val_fraction=val_fraction,
        split_seed=split_seed,
        per_class=per_class,
    )
    return to_memory(found) if in_memory else found
