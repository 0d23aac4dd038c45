"""Labelled files with one folder per class."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from topomask.data.file_tree import FileTree
from topomask.data.labelled_set import LabelledSet
from topomask.data.root import MissingDataError, way_out
from topomask.data.splits import SPLITS, check_split, choose


class ClassFolders(LabelledSet):
    """The files ``<split>/<class>/...`` of one split, and their classes.

    If there are no folders named after splits, the files ``<class>/...`` are the training set.

    Args:
        path: Folder or zip archive.
        split: ``"train"``, ``"val"`` or ``"test"``.
        val_fraction: Fraction of the training set to hold out as ``"val"``; must be 0 if there is a folder ``val``.
        split_seed: Seed of the held-out part.
        per_class: Keep only the first this many files of each class.

    Attributes:
        suffixes: Endings of the files that count, in lower case, with the dot.
        what: What the files are, for errors.
    """

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
        kept = kept if per_class is None else _first_of_each(labels, kept, per_class)
        self._files = [files[index] for index in kept.tolist()]
        self.labels = labels[kept]
        names = self._names()
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

    def _names(self) -> dict[str, str]:
        """Names of the classes by folder, from classes.txt if it exists."""
        content = self._tree.read(("classes.txt",)) or b""
        lines = (line.partition("\t") for line in content.decode("utf-8", errors="replace").splitlines())
        return {folder.strip(): name.strip() for folder, _, name in lines}


def _first_of_each(labels: Tensor, indices: Tensor, per_class: int) -> Tensor:
    if per_class < 1:
        raise ValueError(f"`per_class` must be at least 1, but is {per_class}.")
    chosen = labels[indices]
    return torch.cat([indices[chosen == label][:per_class] for label in chosen.unique().tolist()]).sort().values
