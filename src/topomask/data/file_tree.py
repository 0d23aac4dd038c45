"""Files in a folder or a zip archive, listed and read in the same way, from any number of processes."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any, final

from topomask.data.archives import damage_named, safe_parts
from topomask.data.limits import check_bytes, read_bounded, unpacked_limit


@final
class FileTree:
    """The files of a folder or a zip archive; an archive is not unpacked.

    If the only folder at the top is not a landmark (``pets/train``, ``pets/val``), paths start below it.

    Args:
        path: A folder or a zip archive.
        landmarks: Names of folders that are expected at the top, such as ``"train"``.
    """

    def __init__(self, path: Path, landmarks: tuple[str, ...]) -> None:
        self.path = path
        self._archive: zipfile.ZipFile | None = None
        self._owner = 0
        if path.is_dir():
            self._members: dict[tuple[str, ...], str] | None = None
            names = [child.name for child in path.iterdir() if child.is_dir()]
        # `is_zipfile` seeks the end of the file, and a device has none.
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
            return sorted(child.name for child in self.locate(()).iterdir() if child.is_dir())
        depth = len(self._top)
        return sorted(
            {parts[depth] for parts in self._members if parts[:depth] == self._top and len(parts) > depth + 1}
        )

    def files(self, folder: tuple[str, ...], suffixes: frozenset[str]) -> list[tuple[str, ...]]:
        """Paths, as parts below the top, of all files in and below a folder that have one of the suffixes."""
        start, depth = (*self._top, *folder), len(self._top)
        if self._members is None:
            found = [
                (*Path(place).relative_to(self.path).parts, name)[depth:]
                for place, _, names in os.walk(self.path.joinpath(*start), followlinks=True)
                for name in names
            ]
        else:
            found = [parts[depth:] for parts in self._members if parts[: len(start)] == start]
        return sorted(
            parts
            for parts in found
            if Path(parts[-1]).suffix.lower() in suffixes and not any(part.startswith(".") for part in parts)
        )

    def read(self, parts: tuple[str, ...]) -> bytes | None:
        """The content of a file, or None if it does not exist."""
        if self._members is None:
            file = self.locate(parts)
            return read_bounded(file) if file.is_file() else None
        name = self._members.get((*self._top, *parts))
        if name is None:
            return None
        info = self._open().getinfo(name)
        check_bytes(f"{name} in {self.path}", info.file_size, unpacked_limit(info.compress_size))
        with damage_named(self.path, name):
            return self._open().read(name)

    def locate(self, parts: tuple[str, ...]) -> Path:
        """The path of a file on disk."""
        return self.path.joinpath(*self._top, *parts)

    def _open(self) -> zipfile.ZipFile:
        # A forked process would share the position in the file with its parent, so each process opens its own handle.
        if self._archive is None or self._owner != os.getpid():
            with damage_named(self.path):
                self._archive, self._owner = zipfile.ZipFile(self.path), os.getpid()
        return self._archive

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_archive": None, "_owner": 0}
