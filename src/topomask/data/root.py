"""Where data lives: an argument, else the variable ``TOPOMASK_DATA``, else a folder in the user's cache."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from topomask.support.files import cache_folder


class MissingDataError(FileNotFoundError):
    """Files of a data set are not where they are looked for; the message says where, which, and how to get them."""


def data_root(root: str | Path | None = None) -> Path:
    """The folder under which every data set has its own file or folder.

    Args:
        root: The folder. Default: the environment variable ``TOPOMASK_DATA`` where it is set and not empty, else
            ``topomask/data`` in the user's cache folder.

    Example:
        >>> data_root("sets").name
        'sets'
    """
    if root is not None:
        return Path(root).expanduser()
    if os.environ.get("TOPOMASK_DATA"):
        return Path(os.environ["TOPOMASK_DATA"]).expanduser()
    return cache_folder() / "data"


def way_out(*, download: bool = False) -> str:
    """How to get data that is not there, for Python and for the command line.

    Args:
        download: Whether it can be downloaded.
    """
    if download:
        return (
            "Pass download=True (on the command line: --data.download True), or set $TOPOMASK_DATA or `root` "
            "(--data.root DIR) to the folder that has it."
        )
    return "Set $TOPOMASK_DATA or `root` (on the command line: --data.root DIR) to the folder that has it."


def missing(name: str, folder: Path, expected: Sequence[str], how: str, *, download: bool = False) -> MissingDataError:
    """The error for a data set whose files are not there.

    Args:
        name: Name of the data set.
        folder: Where the files were looked for.
        expected: The files or folders that should be there.
        how: What else there is to say on how to get them, a sentence.
        download: Whether they can be downloaded.
    """
    return MissingDataError(
        f"The data set {name!r} needs {', '.join(expected)} in {folder}, but not all of it is there. "
        f"{way_out(download=download)} {how}"
    )


def find_path(path: str | Path, root: str | Path | None = None) -> Path:
    """The path as it is where there is something, else below the data root."""
    given = Path(path).expanduser()
    return given if given.exists() else data_root(root) / given
