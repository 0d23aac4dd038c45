"""Unpacking of untrusted zip and tar archives."""

from __future__ import annotations

import contextlib
import errno
import gzip
import importlib
import re
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from topomask.data.limits import how_to_raise, unpacked_limit
from topomask.support.files import remove_leftovers, temporary_beside

_CHUNK = 1 << 20
_MAX_UNPACKED = 1 << 32
# Nested folders. Operating systems limit paths to a few thousand characters.
_MAX_DEPTH = 100
# First bytes of compressed tars, and the module that unpacks them; Python may have been built without it.
_PACKINGS = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ": "lzma"}
# What damaged archives raise, besides an OSError of bz2. Names that are empty, very long or not in UTF-8 raise _NAMES,
# and zipfile raises a RuntimeError for members that are encrypted or compressed by an unknown method.
_NAMES = (IndexError, OverflowError, UnicodeDecodeError)
_ARCHIVES = (gzip.BadGzipFile, struct.error, tarfile.TarError, zipfile.BadZipFile, zlib.error)
DAMAGE: tuple[type[Exception], ...] = (*_NAMES, RuntimeError, EOFError, *_ARCHIVES)
# Python may have been built without it.
with contextlib.suppress(ModuleNotFoundError):
    import lzma

    DAMAGE += (lzma.LZMAError,)
READ_ERRORS: tuple[type[Exception], ...] = (*DAMAGE, OSError)


class UnsafeArchiveError(ValueError):
    """An archive is too large, or has a member that must not be unpacked; nothing was written."""


def extract(archive: Path, folder: Path, *, max_bytes: int | None = None, max_members: int = 1_000_000) -> Path:
    """Unpack a zip or tar archive into a new folder, completely or not at all.

    All members are checked before the first byte is written. Refused by name are paths that lead out of the folder
    (absolute, with a drive, or with ``..``), links, devices and other special files, encrypted members, duplicate
    names, and archives above the limits. Files get default permissions, whatever the archive says.

    Args:
        archive: The archive.
        folder: The folder to create; must not exist. It appears once it is complete.
        max_bytes: Largest total size of the members. Default: the environment variable ``TOPOMASK_MAX_BYTES``, else 50
            times the size of the archive, between 16 MiB and 4 GiB.
        max_members: Largest number of members.

    Returns:
        The folder.

    Raises:
        UnsafeArchiveError: The archive is refused or damaged.
    """
    if archive.exists() and not archive.is_file():
        raise UnsafeArchiveError(f"`archive` must be a plain file, but {archive} is a folder or a device.")
    if folder.exists():
        raise FileExistsError(f"`folder` must be new, but {folder} exists. Delete it, or choose another folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder.parent)
    temporary = temporary_beside(folder)
    census = _Census(archive, unpacked_limit(archive, max_bytes, _MAX_UNPACKED), max_members)
    temporary.mkdir()
    try:
        with damage_named(archive, kind=UnsafeArchiveError):
            if zipfile.is_zipfile(archive):
                _extract_zip(archive, temporary, census)
            else:
                _extract_tar(archive, temporary, census)
        try:
            temporary.rename(folder)
        except OSError:
            # Another process may have unpacked the same archive meanwhile; its folder is just as good.
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


@contextlib.contextmanager
def damage_named(archive: Path, member: str = "", kind: type[ValueError] = ValueError) -> Iterator[None]:
    """Turn whatever zipfile, tarfile and their decompressors raise on damaged data into one clear error."""
    try:
        yield
    except READ_ERRORS as error:
        # bz2 raises an OSError without a number, and seeking before the start is EINVAL; the rest are disk errors.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        place = f"{member} in {archive}" if member else str(archive)
        why = str(error).rstrip(".") or type(error).__name__
        raise kind(
            f"{place} cannot be read: it is damaged, or compressed by an unknown method ({why}). Delete {archive.name} "
            "and get it again."
        ) from error


def safe_parts(name: str, archive: Path) -> tuple[str, ...]:
    """Split a member's path into parts; an UnsafeArchiveError names a member whose path leads out of the folder."""
    # A backslash separates folders on Windows, and a colon follows a drive there.
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or re.match(r"[A-Za-z]:", name) or "\0" in name:
        why = f"its member {name!r} points outside the folder it is unpacked into"
    elif len(path.parts) > _MAX_DEPTH:
        why = f"its member {name[:50]!r}... is nested {len(path.parts) - 1:,} folders deep, more than {_MAX_DEPTH}"
    else:
        return path.parts
    raise _refused(archive, f"{why}. Get the archive from a source that you trust.")


def _refused(archive: Path, why: str) -> UnsafeArchiveError:
    return UnsafeArchiveError(f"{archive} was refused: {why}")


class _Census:
    """Names, number and total size of the members seen so far."""

    def __init__(self, archive: Path, max_bytes: int, max_members: int) -> None:
        self.archive, self.max_bytes, self.max_members = archive, max_bytes, max_members
        self.total = self.count = 0
        self.files: set[tuple[str, ...]] = set()
        # The folder that everything is unpacked into.
        self.folders: set[tuple[str, ...]] = {()}

    def admit(self, name: str, size: int, *, is_folder: bool) -> str:
        """Check a member, and return the name to unpack it under."""
        parts = safe_parts(name, self.archive)
        self.total += max(size, 0)
        if self.total > self.max_bytes:
            size_so_far = f"up to its member {name!r} it unpacks to {self.total} bytes"
            limit = f"`max_bytes`={self.max_bytes}. {how_to_raise('max_bytes')}"
            raise _refused(self.archive, f"{size_so_far}, more than {limit}")
        self.count += 1
        if self.count > self.max_members:
            raise _refused(self.archive, f"it has more than `max_members`={self.max_members} members.")
        above = {parts[:depth] for depth in range(len(parts))}
        if parts in self.files or above & self.files or (not is_folder and parts in self.folders):
            raise self.refuse(name, "in conflict with another one of the same name")
        self.folders |= above
        (self.folders if is_folder else self.files).add(parts)
        return "/".join(parts) + "/" * is_folder

    def refuse(self, name: str, what: str) -> UnsafeArchiveError:
        return _refused(self.archive, f"its member {name!r} is {what}. Only plain files and folders are unpacked.")


def _extract_zip(archive: Path, folder: Path, census: _Census) -> None:
    with zipfile.ZipFile(archive) as source:
        for member in source.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise census.refuse(member.filename, "a link or a special file")
            if member.flag_bits & 0x1:
                raise census.refuse(member.filename, "encrypted")
            member.filename = census.admit(member.filename, member.file_size, is_folder=member.is_dir())
        # Reads no more of a member than the size that was checked.
        source.extractall(folder, source.infolist())


def _extract_tar(archive: Path, folder: Path, census: _Census) -> None:
    with _open_tar(archive) as source:
        for member in list(_admitted(source, census)):
            path = folder / member.name
            (path if member.isdir() else path.parent).mkdir(parents=True, exist_ok=True)
            # With any filter, `extractall` may write more than was checked: all pieces of a sparse member, and what
            # follows a negative size.
            if (data := source.extractfile(member)) is not None:
                with data, path.open("xb") as out:
                    shutil.copyfileobj(data, out)
                    if out.tell() != member.size:
                        raise EOFError(f"the member {member.name!r} ends after {out.tell()} of {member.size} bytes")
        # A compressed stream has its checksum at the end. Bounded, since it may be a decompression bomb.
        for _ in range(census.max_bytes // _CHUNK + 1):
            if source.fileobj is None or not source.fileobj.read(_CHUNK):
                break


@contextlib.contextmanager
def _open_tar(archive: Path) -> Iterator[tarfile.TarFile]:
    """Open a tar archive, compressed or not, such that its headers cannot fill the memory."""
    with contextlib.ExitStack() as stack:
        file: BinaryIO = stack.enter_context(archive.open("rb"))
        start = file.read(6)
        file.seek(0)
        for magic, module in _PACKINGS.items():
            if start.startswith(magic):
                file = stack.enter_context(importlib.import_module(module).open(file))
        try:
            tar = tarfile.TarFile(fileobj=cast(BinaryIO, _ShortReads(file)))
        # The first header may have been read already, see `_members`.
        except (tarfile.ReadError, ValueError) as error:
            raise UnsafeArchiveError(
                f"{archive} is neither a zip nor a tar archive, or is damaged ({error}). Is the download complete?"
            ) from None
        yield stack.enter_context(tar)


class _ShortReads:
    """A file that refuses large reads: tarfile reads a long name at once, however long the archive says it is."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell, self.close = file.seek, file.tell, file.close

    def read(self, size: int) -> bytes:
        if size > _CHUNK:
            raise tarfile.ReadError(f"a header of {size:,} bytes, more than {_CHUNK:,}")
        return self._file.read(size)


def _admitted(source: tarfile.TarFile, census: _Census) -> Iterator[tarfile.TarInfo]:
    # One by one, so that a member's size is checked before its data are decompressed in order to skip them.
    for member in _members(source):
        if member.issym() or member.islnk():
            raise census.refuse(member.name, f"a link to {member.linkname!r}")
        if not (member.isreg() or member.isdir()):
            raise census.refuse(member.name, "a device or another special file")
        member.name = census.admit(member.name, member.size, is_folder=member.isdir())
        yield member


def _members(source: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    try:
        yield from source
    except ValueError as error:
        # tarfile does not catch errors in the numbers of a header.
        raise tarfile.ReadError(f"a header is invalid: {error}") from None
