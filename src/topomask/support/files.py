"""Atomic writes, and reading JSON from untrusted files."""

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
# More than any file written here, and well within Python's recursion limit.
_MAX_DEPTH = 32
_FULL = (errno.ENOSPC, errno.EDQUOT)
# Names made by `temporary_beside`; `.part` is from downloads of earlier versions.
_TEMPORARY = re.compile(r"\..+\.\d+(\.[0-9a-f]{8})?\.(tmp|part)")


def cache_folder() -> Path:
    """Return the folder of topomask in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "topomask"


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call ``write`` with a temporary path in the same folder, flush to disk, then rename to ``path``."""
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


def write_content(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def explained(error: OSError, path: Path) -> OSError:
    """Explain the error of a file that could not be written, if the disk is full; otherwise return it unchanged."""
    if error.errno not in _FULL:
        return error
    return OSError(
        f"{path} could not be written: {error.strerror}. Any previous content is intact. Free some space, or choose "
        "another location."
    )


def parse_json(text: str | bytes) -> Any:
    """Parse JSON, or raise a ValueError if it is invalid or nested too deeply."""
    with contextlib.suppress(RecursionError):
        found = json.loads(text)
        level = [found]
        for _ in range(_MAX_DEPTH):
            groups = [list(each.values()) if isinstance(each, dict) else each for each in level]
            level = [part for group in groups if isinstance(group, list) for part in group]
            if not level:
                return found
    raise ValueError(f"it is nested more than {_MAX_DEPTH} levels deep")


def temporary_beside(path: Path) -> Path:
    """Return a unique path in the same folder, to be renamed to `path` or removed."""
    # Processes in two containers may have the same id.
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files and folders that killed processes left in a folder, if unchanged for a day.

    Newer ones may belong to a running process, perhaps on another machine, so its id cannot be checked.
    """
    oldest = time.time() - _DAY
    for path in [path for path in folder.iterdir() if _TEMPORARY.fullmatch(path.name)]:
        # Another process may remove it first, or another user may own it.
        with contextlib.suppress(OSError):
            if path.lstat().st_mtime < oldest:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def flush_to_disk(path: Path) -> None:
    """Flush a file, or the list of files in a folder, so that it survives a power loss."""
    # Only POSIX can open and flush folders.
    if path.is_dir() and os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
