"""Where data is stored: the argument `root`, else the variable ``TOPOMASK_DATA``, else a folder in the user's cache."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from topomask.support.checks import look_up
from topomask.support.files import cache_folder


class MissingDataError(FileNotFoundError):
    """Files of a data set were not found; the message names the files and the folder, and says how to get them."""


def data_root(root: str | Path | None = None) -> Path:
    """Return the folder that contains all data sets.

    Args:
        root: The folder. Default: the environment variable ``TOPOMASK_DATA`` if it is set and not empty, else
            ``topomask/data`` in the user's cache folder.

    Example:
        >>> data_root("sets").name
        'sets'
    """
    root = (os.environ.get("TOPOMASK_DATA") or None) if root is None else root
    return cache_folder() / "data" if root is None else Path(root).expanduser()


def way_out(*, download: bool = False) -> str:
    """The sentence that says how to get missing data, in Python and on the command line."""
    start = "Pass download=True (on the command line: --data.download True), or set" if download else "Set"
    root = "(--data.root DIR)" if download else "(on the command line: --data.root DIR)"
    return f"{start} $TOPOMASK_DATA or `root` {root} to the folder that contains it."


def missing(name: str, folder: Path, expected: Sequence[str], how: str, *, download: bool = False) -> MissingDataError:
    """The error for a data set whose `expected` files are not in `folder`; `how` is a sentence on how to get them."""
    return MissingDataError(
        f"The data set {name!r} needs {', '.join(expected)} in {folder}, but at least one of these is missing. "
        f"{way_out(download=download)} {how}"
    )


def check_known(name: str, kind: str, known: Iterable[str], file: Path) -> None:
    """Raise a ValueError unless a set is known, with the `file` that one's own would be in, and the sets next to it."""
    own = sorted({path.stem for path in file.parent.glob(f"*{file.suffix}")})
    try:
        look_up(dict.fromkeys([*own, *known]), kind, name)
    except ValueError as error:
        there = ", ".join(own[:20]) or "no such file"
        raise ValueError(f"{error} One of your own would be in {file}; in that folder there is: {there}.") from None


def find_path(path: str | Path, root: str | Path | None = None) -> Path:
    """Return the path itself if it exists, else the same path below the data root."""
    given = Path(path).expanduser()
    return given if given.exists() else data_root(root) / given
