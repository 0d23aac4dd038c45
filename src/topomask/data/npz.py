"""Untrusted NumPy archives: sizes are checked before anything is allocated, and nothing is unpickled."""

from __future__ import annotations

import errno
import io
import math
import struct
import tokenize
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from topomask.data.archives import READ_ERRORS
from topomask.data.limits import check_bytes, check_plain, read_up_to, unpacked_limit
from topomask.graph.input import Array
from topomask.support.files import write_content

# Bytes of a header; NumPy's own limit.
_MAX_HEADER = 10_000
# What NumPy raises on an invalid header, which it parses as Python.
_BAD_CODE = (MemoryError, RecursionError, SyntaxError, tokenize.TokenError)
_BAD_HEADER = (*_BAD_CODE, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
# Bytes of an integer once it is a node index or a class.
_WIDTH = 8
# Longest part of a header that an error quotes.
_SHOWN = 120
# By version of the format: the layout of the header's length, and the parser.
_VERSIONS = {(1, 0): ("<H", np.lib.format.read_array_header_1_0), (2, 0): ("<I", np.lib.format.read_array_header_2_0)}


def read_npz(file: Path, max_bytes: int | None = None) -> dict[str, Array]:
    """Read all arrays of an npz file, by name; by default, `max_bytes` is that of :func:`limits.unpacked_limit`.

    Raises:
        ValueError: It is damaged, too large, or contains something other than arrays of numbers and text. The message
            does not name the file, so that callers can put its name in front.
    """
    check_plain(file)
    if not file.is_file() or not zipfile.is_zipfile(file):
        # Raises for a folder, and for a file that does not exist or is not readable.
        with file.open("rb") as source:
            alone = source.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX
        kind = "a single array, not an archive of arrays" if alone else "not an .npz archive, or it is damaged"
        raise ValueError(f"it is {kind}.")
    try:
        with zipfile.ZipFile(file) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
            check_bytes("it", sum(member.file_size for member in members), unpacked_limit(file, max_bytes))
            found = {member.filename.removesuffix(".npy"): _read(archive, member) for member in members}
    except READ_ERRORS as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise ValueError(f"it is damaged: {str(error) or type(error).__name__}.") from None
    # Small integers are counted at the size they are converted to.
    size = sum(array.size * max(array.itemsize, _WIDTH) for array in found.values() if array.dtype.kind in "iu")
    check_bytes("it", size, unpacked_limit(file, max_bytes))
    return found


def write_npz(file: Path, **arrays: Any) -> None:
    """Write arrays to an npz file atomically."""
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    write_content(file, content.getvalue())


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    what = member.filename
    with archive.open(member) as source:
        shape, is_fortran, dtype, start = _header(source, what)
        if dtype.hasobject:
            raise ValueError(f"{what} holds Python objects, which are never unpickled. Save plain numbers instead.")
        if dtype.kind not in "biufcSU" or not dtype.itemsize:
            raise ValueError(f"{what} must hold numbers or text, but has dtype {dtype}.")
        size, held = math.prod(shape) * dtype.itemsize, member.file_size - start
        if min(shape, default=0) < 0 or size != held:
            says = f"{dtype} of shape {shape}"[:_SHOWN]
            raise ValueError(f"{what} is damaged: its header says {says}, but it holds {held:,} bytes.")
        content = read_up_to(source, size)
        if len(content) < size:
            raise EOFError(f"{what} is truncated")
    found: Array = np.ndarray(shape, dtype, content, order="F" if is_fortran else "C")
    return found.astype(dtype.newbyteorder("="), copy=False)


def _header(source: IO[bytes], what: str) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether the order is Fortran's, dtype, and the number of bytes before the content."""
    try:
        version = np.lib.format.read_magic(source)
        if version not in _VERSIONS:
            raise ValueError(f"version {version} of the format is not supported")
        layout, parse = _VERSIONS[version]
        given = source.read(struct.calcsize(layout))
        (length,) = struct.unpack(layout, given)
        if length > _MAX_HEADER:
            raise ValueError(f"it has {length:,} bytes, more than {_MAX_HEADER:,}")
        shape, is_fortran, dtype = parse(io.BytesIO(given + source.read(length)))
    except _BAD_HEADER as error:
        why = str(error).partition("\n")[0].rstrip(".")[:_SHOWN]
        raise ValueError(f"{what} has a header that cannot be read: {why or type(error).__name__}.") from None
    return shape, is_fortran, dtype, np.lib.format.MAGIC_LEN + len(given) + length
