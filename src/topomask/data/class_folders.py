"""Which file belongs to which class, where every class has its folder."""

from __future__ import annotations

from pathlib import Path
from typing import final

import torch
from torch import Tensor

from topomask.data.file_tree import FileTree
from topomask.data.root import MissingDataError, way_out
from topomask.data.splits import check_split, choose

_SPLITS = ("train", "val", "test")


@final
class ClassFolders:
    """The files ``<split>/<class>/...`` of one split, with their classes.

    Without folders named for splits, the files ``<class>/...`` are the training set.

    Args:
        path: Folder or zip archive.
        split: ``"train"``, ``"val"`` or ``"test"``.
        suffixes: Endings of the files that count, in lower case, with the dot.
        val_fraction: The share of the training set that is held out for ``"val"``; 0 where there is a folder ``val``.
        split_seed: Seed of what is held out.
        per_class: Keep the first so many of every class only.
        what: What the files are, for messages.
    """

    def __init__(
        self,
        path: Path,
        split: str,
        suffixes: frozenset[str],
        *,
        val_fraction: float,
        split_seed: int,
        per_class: int | None,
        what: str,
    ) -> None:
        check_split(split, _SPLITS, str(path))
        layout = f"Expected are {what} as train/<class>/*, val/<class>/*, or as <class>/* with `val_fraction`."
        if not path.exists():
            raise MissingDataError(
                f"There is nothing at {path}. {layout} A path that is not there is looked for in the data root. "
                f"{way_out()}"
            )
        self.tree = FileTree(path, _SPLITS)
        folder = self._choose_folder(split, val_fraction, layout)
        depth = len(folder)
        files = self._list(folder, suffixes)
        if not files:
            inside = f" in {folder[0]!r}" if folder else ""
            raise MissingDataError(f"{path} has no {what} ({', '.join(sorted(suffixes))}){inside}. {layout}")
        trained = files if folder in ((), ("train",)) else self._list(("train",), suffixes)
        self.folders = sorted({parts[depth] for parts in trained})
        number = {name: index for index, name in enumerate(self.folders)}
        strange = sorted({parts[depth] for parts in files} - set(number))
        if strange:
            raise ValueError(f"The classes {strange[:10]} of {path} are in {folder[0]!r}, but not in 'train'.")
        labels = torch.tensor([number[parts[depth]] for parts in files])
        kept = choose(
            labels, split if val_fraction else "all", val_fraction=val_fraction, split_seed=split_seed, limit=None
        )
        kept = kept if per_class is None else _first_of_each(labels, kept, per_class)
        self.files = [files[index] for index in kept.tolist()]
        self.labels = labels[kept]
        self.classes = self._names()

    def _list(self, folder: tuple[str, ...], suffixes: frozenset[str]) -> list[tuple[str, ...]]:
        """The files in a class folder; others belong to no class."""
        return [parts for parts in self.tree.files(folder, suffixes) if len(parts) > len(folder) + 1]

    def _choose_folder(self, split: str, val_fraction: float, layout: str) -> tuple[str, ...]:
        """The folder that holds a split."""
        found = self.tree.folders()
        folder = "train" if split == "val" and val_fraction else split
        if folder == "train" and not set(found) & set(_SPLITS):
            return ()
        if folder not in found or "train" not in found:
            fix = (
                " To hold some of the training set out, pass val_fraction=0.1 (--data.val_fraction 0.1)."
                if split == "val"
                else ""
            )
            raise MissingDataError(
                f"{self.tree.path} must have folders 'train' and {folder!r}, but has {found[:10]}. {layout}{fix}"
            )
        if val_fraction and "val" in found:
            raise ValueError(
                f"`val_fraction` is {val_fraction}, but {self.tree.path} has a folder 'val' of its own. Leave it 0."
            )
        return (folder,)

    def read(self, index: int) -> bytes:
        """The content of a file."""
        content = self.tree.read(self.files[index])
        if content is None:
            raise MissingDataError(f"{self.describe(index)} was there, but is gone.")
        return content

    def path(self, index: int) -> Path:
        """Where a file is on disk."""
        return self.tree.locate(self.files[index])

    def describe(self, index: int) -> str:
        """Where a file is, for messages."""
        return f"{'/'.join(self.files[index])} in {self.tree.path}"

    def _names(self) -> tuple[str, ...]:
        """Names of the classes, from classes.txt where there is one."""
        content = self.tree.read(("classes.txt",))
        if content is None:
            return tuple(self.folders)
        lines = (line.partition("\t") for line in content.decode("utf-8", errors="replace").splitlines())
        names = {folder.strip(): name.strip() for folder, _, name in lines}
        return tuple(names.get(folder) or folder for folder in self.folders)


def _first_of_each(labels: Tensor, indices: Tensor, per_class: int) -> Tensor:
    if per_class < 1:
        raise ValueError(f"`per_class` must be at least 1, but is {per_class}.")
    chosen = labels[indices]
    return torch.cat([indices[chosen == label][:per_class] for label in chosen.unique().tolist()]).sort().values
