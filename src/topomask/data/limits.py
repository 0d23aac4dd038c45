"""How much is read of a file that nobody vouches for. Every limit has a name, by which it is raised.

A limit is an argument of the functions that read, and an environment variable, ``TOPOMASK_`` and its name in capitals,
for the command line.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

_MIB = 1 << 20
_CHUNK = _MIB
# Bytes of a data set, unpacked; of text that Python parses, which takes many times its size; and pixels of a picture.
LIMITS = {"max_bytes": 512 * _MIB, "max_text_bytes": 16 * _MIB, "max_pixels": 1 << 26}
# A packed file may grow to so many times its size. Data sets grow tenfold, what is made to fill memory a thousandfold.
_RATIO = 50
# What any packed file may grow to.
_SMALL = 16 * _MIB


def limit_of(name: str, given: int | None = None) -> int:
    """A limit: what was given, else that of the environment, else the default.

    Args:
        name: One of ``LIMITS``.
        given: The argument of whoever reads.

    Example:
        >>> limit_of("max_pixels"), limit_of("max_pixels", 100)
        (67108864, 100)
    """
    chosen = _chosen(name, given)
    return LIMITS[name] if chosen is None else chosen


def unpacked_limit(packed: int | Path, given: int | None = None, most: int = LIMITS["max_bytes"]) -> int:
    """What a packed file may unpack to: ``max_bytes``, else 50 times its size, within 16 MiB and `most`.

    Args:
        packed: The file, or its size in bytes.
        given: The argument ``max_bytes`` of whoever reads.
        most: The largest of defaults.

    Example:
        >>> [unpacked_limit(size) >> 20 for size in (1, 1 << 20, 1 << 30)]
        [16, 50, 512]
    """
    chosen = _chosen("max_bytes", given)
    size = packed if isinstance(packed, int) else packed.stat().st_size
    return min(most, max(_SMALL, _RATIO * size)) if chosen is None else chosen


def check_bytes(what: str | Path, size: int, bound: int, name: str = "max_bytes") -> None:
    """A ValueError that names the limit where something is larger.

    Args:
        what: What is read.
        size: Its bytes, unpacked.
        bound: The limit.
        name: Name of the limit.
    """
    if size > bound:
        raise ValueError(f"{what} takes {size:,} bytes, more than `{name}`={bound:,}. {how_to_raise(name)}")


def how_to_raise(name: str) -> str:
    """The sentence on how to raise a limit."""
    return f"If you trust it, raise the limit: {name}=... in Python, or the environment variable {_variable(name)}."


def read_bounded(file: Path, name: str = "max_bytes", given: int | None = None) -> bytes:
    """The content of a plain file that is not larger than a limit."""
    check_plain(file)
    with file.open("rb") as source:
        facts = os.fstat(source.fileno())
        bound = limit_of(name, given)
        check_bytes(file, facts.st_size, bound, name)
        # Where it grows meanwhile, no more is read.
        return source.read(facts.st_size)


def check_plain(file: Path) -> None:
    """A ValueError where opening a file would wait for somebody to write to it."""
    mode = file.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ValueError(f"{file} must be a plain file, but is a device or a pipe.")


def read_text(file: Path) -> str:
    """The text of a file in UTF-8 that is not larger than ``max_text_bytes``."""
    content = read_bounded(file, "max_text_bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not text in UTF-8 ({error.reason} at byte {error.start}).") from None


def read_up_to(source: IO[bytes], size: int) -> npt.NDArray[np.uint8]:
    """So many bytes, or fewer where there are no more; held once, in memory that is not touched before they come."""
    content = np.empty(size, np.uint8)
    filled = 0
    while filled < size and (chunk := source.read(min(_CHUNK, size - filled))):
        content[filled : filled + len(chunk)] = np.frombuffer(chunk, np.uint8)
        filled += len(chunk)
    return content[:filled]


def _chosen(name: str, given: int | None) -> int | None:
    """What was given, else that of the environment, or None."""
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
