"""Images and videos in class folders, on disk or in a zip archive: ``train/<class>/*.jpg``, ``val/<class>/*.jpg``."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from topomask.data.archives import damage_named, safe_parts
from topomask.data.labelled_set import LabelledSet
from topomask.data.limits import check_bytes, read_bounded, unpacked_limit
from topomask.data.pictures import decode_image, read_video
from topomask.data.root import MissingDataError, way_out
from topomask.data.splits import SPLITS, check_split, choose
from topomask.support.checks import check_sizes
from topomask.support.imports import need


@final
class FileTree:
    """The files of a folder or a zip archive; an archive is not unpacked.

    Paths start below the top folder if it is the only one, and not one of `landmarks`, which are expected at the top:
    ``pets/train`` and ``pets/val`` become ``train`` and ``val``.
    """

    def __init__(self, path: Path, landmarks: tuple[str, ...]) -> None:
        self.path, self._is_folder = path, path.is_dir()
        self._archive: zipfile.ZipFile | None = None
        self._owner = 0
        if self._is_folder:
            found = {
                Path(place, name).relative_to(path).parts: os.path.join(place, name)
                for place, _, names in os.walk(path, followlinks=True)
                for name in names
            }
        # `is_zipfile` seeks the end of the file, and a device has none.
        elif path.is_file() and zipfile.is_zipfile(path):
            found = {safe_parts(name, path): name for name in self._open().namelist() if not name.endswith("/")}
        else:
            raise ValueError(f"`path` must be a folder or a zip archive, but {path} is neither.")
        tops = {parts[0] for parts in found if len(parts) > 1 and parts[0] != "__MACOSX" and parts[0][0] != "."}
        depth = int(len(tops) == 1 and not tops & set(landmarks))
        # Paths on disk or names in the archive, by the parts below the top folder.
        self._names = {parts[depth:]: name for parts, name in found.items() if not depth or parts[0] in tops}

    def folders(self) -> list[str]:
        """Names of the folders at the top that contain files, sorted."""
        return sorted({parts[0] for parts in self._names if len(parts) > 1})

    def files(self, folder: tuple[str, ...], suffixes: frozenset[str]) -> list[tuple[str, ...]]:
        """Paths, as parts below the top, of all files in and below a folder that have one of the suffixes."""
        return sorted(
            parts
            for parts in self._names
            if parts[: len(folder)] == folder
            and Path(parts[-1]).suffix.lower() in suffixes
            and not any(part.startswith(".") for part in parts)
        )

    def read(self, parts: tuple[str, ...]) -> bytes | None:
        """The content of a file, or None if it does not exist."""
        name = self._names.get(parts)
        if name is None:
            return None
        if self._is_folder:
            return read_bounded(Path(name)) if os.path.isfile(name) else None
        info = self._open().getinfo(name)
        check_bytes(f"{name} in {self.path}", info.file_size, unpacked_limit(info.compress_size))
        with damage_named(self.path, name):
            return self._open().read(name)

    def locate(self, parts: tuple[str, ...]) -> Path:
        """The path of a file on disk."""
        return Path(self._names[parts])

    def _open(self) -> zipfile.ZipFile:
        # A forked process would share the position in the file with its parent, so each process opens its own handle.
        if self._archive is None or self._owner != os.getpid():
            with damage_named(self.path):
                self._archive, self._owner = zipfile.ZipFile(self.path), os.getpid()
        return self._archive

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_archive": None, "_owner": 0}


class ClassFolders(LabelledSet):
    """The files ``<split>/<class>/...`` of one split, and their classes; the arguments are those of `ImageFolder`.

    If there are no folders named after splits, the files ``<class>/...`` are the training set.
    """

    # Endings of the files that count, in lower case, and what the files are, for errors.
    suffixes: ClassVar[frozenset[str]]
    what: ClassVar[str]

    def __init__(self, path: Path, split: str, *, val_fraction: float, split_seed: int, per_class: int | None) -> None:
        check_split(split, SPLITS, str(path))
        layout = f"Expected {self.what} as train/<class>/*, val/<class>/*, or as <class>/* with `val_fraction`."
        if not path.exists():
            raise MissingDataError(
                f"There is nothing at {path}. {layout} Relative paths are also looked up in the data root. {way_out()}"
            )
        self._tree = FileTree(path, SPLITS)
        folder = self._choose_folder(split, val_fraction, layout)
        depth = len(folder)
        files = self._list(folder)
        if not files:
            inside = f" in {folder[0]!r}" if folder else ""
            raise MissingDataError(f"{path} has no {self.what} ({', '.join(sorted(self.suffixes))}){inside}. {layout}")
        trained = files if folder in ((), ("train",)) else self._list(("train",))
        folders = sorted({parts[depth] for parts in trained})
        number = {name: index for index, name in enumerate(folders)}
        unknown = sorted({parts[depth] for parts in files} - set(number))
        if unknown:
            raise ValueError(f"The classes {unknown[:10]} of {path} are in {folder[0]!r}, but not in 'train'.")
        labels = torch.tensor([number[parts[depth]] for parts in files])
        kept = choose(
            labels, split if val_fraction else "all", val_fraction=val_fraction, split_seed=split_seed, limit=None
        )
        if per_class is not None:
            check_sizes(per_class=per_class)
            firsts = [kept[labels[kept] == label][:per_class] for label in range(len(folders))]
            kept = torch.cat(firsts).sort().values
        self._files = [files[index] for index in kept.tolist()]
        self.labels = labels[kept]
        text = (self._tree.read(("classes.txt",)) or b"").decode("utf-8", errors="replace")
        names = {
            folder.strip(): name.strip() for folder, _, name in (line.partition("\t") for line in text.splitlines())
        }
        self.classes = tuple(names.get(name) or name for name in folders)

    def _list(self, folder: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The files in class folders; files outside have no class."""
        return [parts for parts in self._tree.files(folder, self.suffixes) if len(parts) > len(folder) + 1]

    def _choose_folder(self, split: str, val_fraction: float, layout: str) -> tuple[str, ...]:
        """The folder that contains a split; () if class folders are at the top."""
        found = self._tree.folders()
        folder = "train" if split == "val" and val_fraction else split
        if folder == "train" and not set(found) & set(SPLITS):
            return ()
        if folder not in found or "train" not in found:
            hold_out = " To hold out part of the training set, pass val_fraction=0.1 (--data.val_fraction 0.1)."
            raise MissingDataError(
                f"{self._tree.path} must have folders 'train' and {folder!r}, but has {found[:10]}. {layout}"
                f"{hold_out if split == 'val' else ''}"
            )
        if val_fraction and "val" in found:
            raise ValueError(
                f"`val_fraction` is {val_fraction}, but {self._tree.path} has a folder 'val'. Leave it at 0."
            )
        return (folder,)

    def _read(self, index: int) -> bytes:
        content = self._tree.read(self._files[index])
        if content is None:
            raise MissingDataError(f"{self._describe(index)} has been deleted since the data set was made.")
        return content

    def _describe(self, index: int) -> str:
        """Name and place of a file, for errors."""
        return f"{'/'.join(self._files[index])} in {self._tree.path}"


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
        check_sizes(size=1 if size is None else size)
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


@final
class VideoFolder(ClassFolders):
    """Videos, decoded by PyAV on access; frames are sampled evenly over the whole video.

    Splits and classes are found as by :class:`ImageFolder`.

    Args:
        path: Folder that contains ``<split>/<class>/<video>``.
        split: ``"train"``, ``"val"`` or ``"test"``.
        num_frames: Frames per video; a shorter video repeats frames.
        size: Resize frames such that the shorter side has this many pixels, and crop them to a square.
        val_fraction, split_seed, per_class: As in :class:`ImageFolder`.
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
