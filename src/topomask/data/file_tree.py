"""Files in folders, on disk or inside a zip archive, listed and read alike by any number of processes."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any, final

from topomask.data.archives import damage_named, safe_parts
from topomask.data.limits import check_bytes, read_bounded, unpacked_limit


@final
class FileTree:
    """The files below a folder, or in a zip archive, which is read in place.

    Where everything lies in one folder that has no meaning (``pets/train``, ``pets/val``), that folder is passed over.

    Args:
        path: A folder or a zip archive.
        landmarks: Names of folders that may stand at the top, such as ``"train"``.
    """

    def __init__(self, path: Path, landmarks: tuple[str, ...]) -> None:
        self.path = path
        self._archive: zipfile.ZipFile | None = None
        self._owner = 0
        if path.is_dir():
            self._members: dict[tuple[str, ...], str] | None = None
            names = [child.name for child in path.iterdir() if child.is_dir()]
        # Of a device, the end would be looked for without end.
        elif path.is_file() and zipfile.is_zipfile(path):
            self._members = {safe_parts(name, path): name for name in self._open().namelist() if not name.endswith("/")}
            names = list({parts[0] for parts in self._members if len(parts) > 1})
        else:
            raise ValueError(f"`path` must be a folder or a zip archive, but {path} is neither.")
        names = [name for name in names if name != "__MACOSX" and not name.startswith(".")]
        self._top: tuple[str, ...] = (names[0],) if len(names) == 1 and names[0] not in landmarks else ()

    def folders(self) -> list[str]:
        """Names of the folders at the top, sorted."""
        if self._members is None:
            top = self.path.joinpath(*self._top)
            return sorted(child.name for child in top.iterdir() if child.is_dir())
        depth = len(self._top)
        return sorted(
            {parts[depth] for parts in self._members if parts[:depth] == self._top and len(parts) > depth + 1}
        )

    def files(self, folder: tuple[str, ...], suffixes: frozenset[str]) -> list[tuple[str, ...]]:
        """The parts of the paths, below the top, of the files in a folder and below that have one of the suffixes."""
        start = (*self._top, *folder)
        found: list[tuple[str, ...]]
        if self._members is None:
            found = [
                (*Path(place).relative_to(self.path).parts, name)
                for place, _, names in os.walk(self.path.joinpath(*start), followlinks=True)
                for name in names
            ]
        else:
            found = [parts for parts in self._members if parts[: len(start)] == start]
        hidden = [any(part.startswith(".") for part in parts[len(self._top) :]) for parts in found]
        return sorted(
            parts[len(self._top) :]
            for parts, is_hidden in zip(found, hidden, strict=True)
            if not is_hidden and Path(parts[-1]).suffix.lower() in suffixes
        )

    def read(self, parts: tuple[str, ...]) -> bytes | None:
        """The content of a file, given by the parts of its path below the top; None where there is no such file."""
        parts = (*self._top, *parts)
        if self._members is None:
            file = self.path.joinpath(*parts)
            return read_bounded(file) if file.is_file() else None
        if parts not in self._members:
            return None
        archive, name = self._open(), self._members[parts]
        info = archive.getinfo(name)
        check_bytes(f"{name} in {self.path}", info.file_size, unpacked_limit(info.compress_size))
        with damage_named(self.path, name):
            return archive.read(name)

    def locate(self, parts: tuple[str, ...]) -> Path:
        """Where a file is on disk, given by the parts of its path below the top."""
        return self.path.joinpath(*self._top, *parts)

    def _open(self) -> zipfile.ZipFile:
        # A forked process shares the place in the file with its parent, so that every process opens its own.
        if self._archive is None or self._owner != os.getpid():
            with damage_named(self.path):
                self._archive, self._owner = zipfile.ZipFile(self.path), os.getpid()
        return self._archive

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_archive": None, "_owner": 0}
