"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path

_DAY = 86_400.0
# What `temporary_beside` makes; `.part` is how downloads were once called.
_TEMPORARY = re.compile(r"\..+\.\d+(\.[0-9a-f]{8})?\.(tmp|part)")


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file beside its place, make sure that it is on disk, and only then give it its name.

    Args:
        path: Its place; folders on the way are made.
        write: Writes the file to the path that it is given.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_beside(path)
    try:
        write(temporary)
        _flush(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _flush(path.parent)


def temporary_beside(path: Path) -> Path:
    """A name in the same folder that no other process has, to be renamed to `path` or removed."""
    # Processes in two containers may have one id.
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files and folders that killed processes left in a folder: those untouched for a day.

    Younger ones may belong to a process that is alive, perhaps on another machine, so that its id says nothing.
    """
    oldest = time.time() - _DAY
    for path in [path for path in folder.iterdir() if _TEMPORARY.fullmatch(path.name)]:
        # Another process may remove the same, and another user may own it.
        with contextlib.suppress(OSError):
            if path.lstat().st_mtime < oldest:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _flush(path: Path) -> None:
    # Folders can be opened, and flushed, on POSIX only.
    if path.is_dir() and os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
