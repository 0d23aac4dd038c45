"""Downloads, verified by size and SHA-256; nothing is downloaded unless asked for."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO

from topomask.support.files import remove_leftovers, write_atomically
from topomask.support.imports import installed

_CHUNK = 1 << 20
_TIMEOUT_SECONDS = 60.0


class DownloadError(OSError):
    """A file could not be downloaded, or is not the expected one."""


@dataclass(frozen=True)
class RemoteFile:
    """A file that is available at one or more URLs (http or https), which are tried in order."""

    name: str
    urls: tuple[str, ...]
    sha256: str
    size: int


def fetch(file: RemoteFile, folder: Path) -> Path:
    """Download a file into a folder unless it is already there, and return its path.

    The file gets its name only once it is complete and its size and hash are correct. An existing file is used as it
    is, unverified: the user may have compressed it again.
    """
    target = folder / file.name
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    problems = []
    for url in file.urls:
        try:
            # If two processes download the same file, the last to rename it wins.
            write_atomically(target, partial(_download, url, file))
            return target
        except (OSError, HTTPException, ValueError) as error:
            # Another process may have downloaded it meanwhile; its file is just as good.
            if target.exists():
                return target
            problems.append(f"{url}: {error}")
    raise DownloadError(
        f"{file.name} could not be downloaded ({'; '.join(problems)}). If this machine is offline, download the file "
        f"on another one and copy it to {target}; its SHA-256 is {file.sha256}."
    )


def _download(url: str, file: RemoteFile, path: Path) -> None:
    if not url.startswith(("https://", "http://")):
        raise ValueError("the URL must start with http:// or https://.")
    digest, received = hashlib.sha256(), 0
    with (
        urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response,
        path.open("wb") as out,
        _shown(response, file) as source,
    ):
        while chunk := source.read(_CHUNK):
            received += len(chunk)
            if received > file.size:
                raise ValueError(f"received more than the expected {file.size} bytes.")
            digest.update(chunk)
            out.write(chunk)
    if received != file.size:
        raise ValueError(f"received {received} bytes instead of {file.size}: the download is incomplete.")
    if digest.hexdigest() != file.sha256:
        raise ValueError(f"the SHA-256 is {digest.hexdigest()} instead of {file.sha256}: this is another file.")


def _shown(response: BinaryIO, file: RemoteFile) -> contextlib.AbstractContextManager[BinaryIO]:
    """The response, with a progress bar if stderr is a terminal and `rich` is installed."""
    if not (sys.stderr.isatty() and installed("rich")):
        return contextlib.nullcontext(response)
    from rich.console import Console
    from rich.progress import wrap_file

    return wrap_file(response, file.size, description=file.name, console=Console(stderr=True))
