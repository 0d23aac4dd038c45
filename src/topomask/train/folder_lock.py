"""One run at a time in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import IO

try:
    import fcntl
except ModuleNotFoundError:  # pragma: no cover
    # Not on Windows, where runs go on without a lock.
    fcntl = None  # type: ignore[assignment]


class FolderInUse(RuntimeError):  # noqa: N818
    """A folder in which another run is at work."""


class FolderLock:
    """A lock on the file ``lock`` of a folder, which the system takes back when the process ends, however it ends.

    The file itself stays: were it removed, a third process could lock a new one while a second holds the old.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: IO[bytes] | None = None

    def acquire(self) -> None:
        """Take the lock; a :class:`FolderInUse` where another run has it."""
        if fcntl is None or self._file is not None:
            return
        file = (self.folder / "lock").open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise FolderInUse(
                f"Another process is training in {self.folder}. Wait until it is done, stop it, or choose another "
                "folder."
            ) from None
        except OSError:
            # A file system without locks; runs go on as they do where there is no fcntl.
            file.close()
            return
        self._file = file

    def release(self) -> None:
        """Give the lock back, if it was taken."""
        if self._file is not None:
            # Said aloud, since a fork of this process may have the file open still.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file.close()
            self._file = None
