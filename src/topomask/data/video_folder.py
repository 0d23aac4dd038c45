"""Videos in class folders: ``train/<class>/*.mp4``, ``val/<class>/*.mp4``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from topomask.data.class_folders import ClassFolders
from topomask.data.extras import need
from topomask.data.in_memory import InMemorySet, to_memory
from topomask.data.labelled_set import LabelledSet
from topomask.data.root import find_path

_SUFFIXES = frozenset({".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg"})
_MAX_PIXELS = 1 << 26


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
        need("av", "PyAV", "video", "Reading videos")
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
        av = need("av", "PyAV", "video", "Reading videos")
        assert self.num_frames is not None
        try:
            frames = _sample_frames(av, self._files.path(index), self.num_frames, self.size)
        except (av.error.FFmpegError, ValueError) as error:
            raise ValueError(f"{self._files.describe(index)} cannot be read as a video: {error}") from error
        return torch.from_numpy(frames).permute(0, 3, 1, 2).contiguous(), int(self.labels[index])


def _sample_frames(av: Any, path: Path, num_frames: int, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Frames at the middles of `num_frames` equal stretches, uint8, [T, H, W, 3]."""
    # A playlist that calls itself a video may name addresses; only files are opened.
    options = {"protocol_whitelist": "file"}
    with av.open(str(path), options=options) as container:
        if not container.streams.video:
            raise ValueError("it has no pictures.")
        count = container.streams.video[0].frames or _count_frames(container)
    if not count:
        raise ValueError("it has no pictures.")
    wanted = ((np.arange(num_frames) + 0.5) * count / num_frames).astype(int)
    taken: list[np.ndarray[Any, np.dtype[np.uint8]]] = []
    end = None
    with av.open(str(path), options=options) as container:
        for number, frame in enumerate(container.decode(container.streams.video[0])):
            repeats = int((wanted == number).sum())
            # Turning a frame into colours costs time, so only those that are wanted are.
            taken += [_to_square(frame, size)] * repeats if repeats else []
            end = frame
            if len(taken) == num_frames:
                break
    if end is None:
        raise ValueError("none of its pictures can be decoded.")
    if len(taken) < num_frames:
        # The file holds fewer frames than it says.
        taken += [_to_square(end, size)] * (num_frames - len(taken))
    return np.stack(taken)


def _count_frames(container: Any) -> int:
    """Packets of the first video stream: one per frame, and cheap to count."""
    return sum(packet.size > 0 for packet in container.demux(container.streams.video[0]))


def _to_square(frame: Any, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if frame.width * frame.height > _MAX_PIXELS:
        raise ValueError(f"its frames have {frame.width} x {frame.height} pixels, more than {_MAX_PIXELS} in all.")
    scale = size / min(frame.width, frame.height)
    width, height = (max(size, round(side * scale)) for side in (frame.width, frame.height))
    pixels = frame.reformat(width=width, height=height, format="rgb24").to_ndarray()
    left, top = (width - size) // 2, (height - size) // 2
    return pixels[top : top + size, left : left + size]


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
