"""Files that are whole or not there, and JSON from files that others may have changed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_DAY = 86_400.0
# Deeper than anything that is written here, and well within what functions that call themselves can follow.
_MAX_DEPTH = 32
_FULL = (errno.ENOSPC, errno.EDQUOT)
# What `temporary_beside` makes; `.part` is how downloads were once called.
_TEMPORARY = re.compile(r"\..+\.\d+(\.[0-9a-f]{8})?\.(tmp|part)")


def cache_folder() -> Path:
    """The folder of topomask in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "topomask"


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
        flush_to_disk(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise explained(error, path) from None
    finally:
        temporary.unlink(missing_ok=True)
    flush_to_disk(path.parent)


def explained(error: OSError, path: Path) -> OSError:
    """The error of a file that could not be written; in words where there is no room for it."""
    if error.errno not in _FULL:
        return error
    return OSError(
        f"{path} could not be written: {error.strerror}. What was there before is whole. Free some space, or choose "
        "another place."
    )


def parse_json(text: str | bytes) -> Any:
    """What JSON says; a ValueError where it is not JSON, or nested more deeply than any that is written here."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested more than {_MAX_DEPTH} deep") from None
    level = [found]
    for _ in range(_MAX_DEPTH):
        level = [part for each in level if isinstance(each, dict | list) for part in _parts(each)]
        if not level:
            return found
    raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")


def _parts(found: dict[str, Any] | list[Any]) -> Any:
    return found.values() if isinstance(found, dict) else found


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


def flush_to_disk(path: Path) -> None:
    """Make sure that a file, or a list of files in a folder, outlasts a loss of power."""
    # Folders can be opened, and flushed, on POSIX only.
    if path.is_dir() and os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
