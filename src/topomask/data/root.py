"""Where data lives: an argument, else the variable ``TOPOMASK_DATA``, else a folder in the user's cache."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


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
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(folder) / "topomask" / "data"


def missing(name: str, folder: Path, expected: Sequence[str], how: str) -> MissingDataError:
    """The error for a data set whose files are not there.

    Args:
        name: Name of the data set.
        folder: Where the files were looked for.
        expected: The files or folders that should be there.
        how: How to get them, a sentence.
    """
    return MissingDataError(
        f"The data set {name!r} needs {', '.join(expected)} in {folder}, but not all of it is there. {how} "
        "Data kept elsewhere is found with the argument `root` or the environment variable TOPOMASK_DATA."
    )


def find_path(path: str | Path, root: str | Path | None = None) -> Path:
    """The path as it is where there is something, else below the data root."""
    given = Path(path).expanduser()
    return given if given.exists() else data_root(root) / given
