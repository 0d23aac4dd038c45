"""Limits on how much is read from untrusted files.

Each limit has a name. It can be raised by an argument of that name where a function has one, or by the environment
variable ``TOPOMASK_`` plus the name in capitals, which also works on the command line.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

_MIB = 1 << 20
# Bytes of an unpacked data set; of text, which takes many times its size once Python has parsed it; pixels of an image.
LIMITS = {"max_bytes": 512 * _MIB, "max_text_bytes": 16 * _MIB, "max_pixels": 1 << 26}
# By how much a compressed file may grow. Data sets grow about tenfold, decompression bombs a thousandfold.
_RATIO = 50
# Any compressed file may grow to this size.
_SMALL = 16 * _MIB


def limit_of(name: str, given: int | None = None) -> int:
    """Return a limit of ``LIMITS``: `given`, else the environment variable, else the default."""
    chosen = _chosen(name, given)
    return LIMITS[name] if chosen is None else chosen


def unpacked_limit(packed: int | Path, given: int | None = None, most: int = LIMITS["max_bytes"]) -> int:
    """The size that a file may unpack to: ``max_bytes`` if set, else 50 times its size, between 16 MiB and `most`."""
    chosen = _chosen("max_bytes", given)
    size = packed if isinstance(packed, int) else packed.stat().st_size
    return min(most, max(_SMALL, _RATIO * size)) if chosen is None else chosen


def check_bytes(what: str | Path, size: int, bound: int, name: str = "max_bytes") -> None:
    """Raise a ValueError if the size of `what`, unpacked and in bytes, exceeds the limit `name`, which is `bound`."""
    if size > bound:
        raise ValueError(f"{what} takes {size:,} bytes, more than `{name}`={bound:,}. {how_to_raise(name)}")


def how_to_raise(name: str) -> str:
    """The sentence that says how to raise a limit."""
    # No function takes `max_text_bytes`.
    argument = "" if name == "max_text_bytes" else f"{name}=... in Python, or "
    return f"If you trust it, raise the limit: {argument}the environment variable {_variable(name)}."


def read_bounded(file: Path, name: str = "max_bytes", given: int | None = None) -> bytes:
    """Read a regular file that is no larger than a limit."""
    check_plain(file)
    with file.open("rb") as source:
        size = os.fstat(source.fileno()).st_size
        check_bytes(file, size, limit_of(name, given), name)
        # The file may grow meanwhile.
        return source.read(size)


def check_plain(file: Path) -> None:
    """Raise an error if there is no file, or a device or pipe: opening a pipe would wait until someone writes to it."""
    try:
        mode = file.stat().st_mode
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no file {file}. Check the path.") from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ValueError(f"{file} must be a plain file, but is a device or a pipe.")


def read_text(file: Path) -> str:
    """Read a UTF-8 file that is no larger than ``max_text_bytes``."""
    content = read_bounded(file, "max_text_bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not text in UTF-8 ({error.reason} at byte {error.start}).") from None


def read_up_to(source: IO[bytes], size: int) -> npt.NDArray[np.uint8]:
    """Read `size` bytes, or as many as there are; held once, in memory that is not touched before it is filled."""
    content = np.empty(size, np.uint8)
    filled = 0
    while filled < size and (chunk := source.read(min(_MIB, size - filled))):
        content[filled : filled + len(chunk)] = np.frombuffer(chunk, np.uint8)
        filled += len(chunk)
    return content[:filled]


def _chosen(name: str, given: int | None) -> int | None:
    """The argument, else the environment variable, else None."""
    text = os.environ.get(_variable(name), "")
    if given is None and not text:
        return None
    where, value = (f"`{name}`", given) if given is not None else (f"The environment variable {_variable(name)}", text)
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{where} must be a positive integer, but is {value!r}.")
    return value


def _variable(name: str) -> str:
    return f"TOPOMASK_{name.upper()}"
