"""Files that are made to harm their reader, and the time and memory that they take."""

import gzip
import io
import resource
import struct
import tracemalloc
import zipfile
import zlib
from contextlib import contextmanager
from pathlib import Path

import numpy as np

MIB = 1 << 20


@contextmanager
def little_memory(most: int = 8 * MIB):
    """Fails where what happens inside holds more bytes at once; NumPy counts, whether it touches them or not."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most, f"{peak:,} bytes were held at once"


@contextmanager
def small_files(most: int = MIB):
    """Fails where what happens inside writes to a file beyond so many bytes, whether it is cut afterwards or not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def npy(header: str, body: bytes = b"", version: int = 1, length: int | None = None) -> bytes:
    """An array as NumPy writes it, with any header, which may say another length than it has."""
    length = len(header) if length is None else length
    return (
        b"\x93NUMPY"
        + bytes((version, 0))
        + struct.pack("<H" if version == 1 else "<I", length)
        + header.encode()
        + body
    )


def header(shape: str, dtype: str = "'<i8'") -> str:
    """The header of an array."""
    return f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}"


def write_npz(path: Path, **arrays) -> Path:
    """An archive of arrays; bytes are a member as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out:
        for name, content in arrays.items():
            if not isinstance(content, bytes):
                buffer = io.BytesIO()
                np.lib.format.write_array(buffer, np.asarray(content), allow_pickle=True)
                content = buffer.getvalue()
            out.writestr(f"{name}.npy", content)
    return path


def zeros_gz(start: bytes, size: int) -> bytes:
    """A gzip file of a beginning and so many zeros."""
    return gzip.compress(start + bytes(size), compresslevel=1)


def png(width: int, height: int) -> bytes:
    """A whole picture that says it has so many pixels, and has none."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    facts = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", facts) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
