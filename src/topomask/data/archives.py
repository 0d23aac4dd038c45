"""Unpacking of zip and tar archives that nobody vouches for."""

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
# Folders within folders. The system allows paths of a few thousand characters.
_MAX_DEPTH = 100
# How packed tars begin, and the module that unpacks them; Python may have been built without one.
_PACKINGS = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ": "lzma"}
# What is raised on bytes that are wrong, an OSError of bz2 aside.
DAMAGE: tuple[type[Exception], ...] = (
    EOFError,
    # Those of names: empty, longer than anything, or not in UTF-8.
    IndexError,
    OverflowError,
    UnicodeDecodeError,
    # That of zipfile for members that are encrypted or packed in a way it does not know.
    RuntimeError,
    gzip.BadGzipFile,
    struct.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)
# Python may have been built without it.
with contextlib.suppress(ModuleNotFoundError):
    import lzma

    DAMAGE += (lzma.LZMAError,)
READ_ERRORS: tuple[type[Exception], ...] = (*DAMAGE, OSError)


class UnsafeArchiveError(ValueError):
    """An archive has a member that must not be written, or is too large; nothing was written."""


def extract(archive: Path, folder: Path, *, max_bytes: int | None = None, max_members: int = 1_000_000) -> Path:
    """Unpack a zip or tar archive into a new folder, all of it or nothing.

    Every member is looked at before the first byte is written. Refused by name are paths that leave the folder
    (absolute, with a drive, or with ``..``), links of any kind, devices and other special files, encrypted members, two
    members of one name, and archives above the limits. Files get the default permissions, whatever the archive says.

    Args:
        archive: The archive.
        folder: The folder to make; must not exist. It appears once everything is in it.
        max_bytes: Largest sum of the sizes of the members. Default: the environment variable ``TOPOMASK_MAX_BYTES``,
            else 50 times the size of the archive, within 16 MiB and 4 GiB.
        max_members: Largest number of members.

    Returns:
        The folder.
    """
    if archive.exists() and not archive.is_file():
        raise UnsafeArchiveError(f"`archive` must be a plain file, but {archive} is a folder or a device.")
    if folder.exists():
        raise FileExistsError(f"`folder` must be new, but {folder} exists. Delete it first, or choose another.")
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
        _publish(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


@contextlib.contextmanager
def damage_named(archive: Path, member: str = "", kind: type[ValueError] = ValueError) -> Iterator[None]:
    """Turn what zipfile, tarfile and their decompressors raise on bytes that are wrong into one clear error.

    Args:
        archive: The archive that is read inside.
        member: Its member that is read. Default: all of it.
        kind: Which error.
    """
    try:
        yield
    except READ_ERRORS as error:
        # bz2 has an OSError without a number, and a place before the start of a file is invalid; others are the disk's.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        place = f"{member} in {archive}" if member else str(archive)
        why = str(error).rstrip(".") or type(error).__name__
        raise kind(
            f"{place} cannot be read: it is damaged, or packed in an unknown way ({why}). Delete {archive.name} and "
            "get it again."
        ) from error


def safe_parts(name: str, archive: Path) -> tuple[str, ...]:
    """The parts of a member's path, or an error that names the member where the path leaves the folder."""
    # A backslash separates folders on Windows, and a colon follows a drive there.
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or re.match(r"[A-Za-z]:", name) or "\0" in name:
        raise UnsafeArchiveError(
            f"{archive} was refused: its member {name!r} points outside the folder it is unpacked into. "
            "Get the archive from a source that you trust."
        )
    if len(path.parts) > _MAX_DEPTH:
        raise UnsafeArchiveError(
            f"{archive} was refused: its member {name[:50]!r}... lies in {len(path.parts) - 1:,} folders within each "
            f"other, more than {_MAX_DEPTH}. Get the archive from a source that you trust."
        )
    return path.parts


class _Census:
    """What the members seen so far add up to."""

    def __init__(self, archive: Path, max_bytes: int, max_members: int) -> None:
        self.archive, self.max_bytes, self.max_members = archive, max_bytes, max_members
        self.total = 0
        self.count = 0
        self.files: set[tuple[str, ...]] = set()
        # The folder that everything is unpacked into.
        self.folders: set[tuple[str, ...]] = {()}

    def admit(self, name: str, size: int, *, is_folder: bool) -> str:
        """The name to unpack a member under."""
        parts = safe_parts(name, self.archive)
        self.total += max(size, 0)
        if self.total > self.max_bytes:
            raise UnsafeArchiveError(
                f"{self.archive} was refused: up to its member {name!r} it unpacks to {self.total} bytes, more than "
                f"`max_bytes`={self.max_bytes}. {how_to_raise('max_bytes')}"
            )
        self.count += 1
        if self.count > self.max_members:
            raise UnsafeArchiveError(
                f"{self.archive} was refused: it has more than `max_members`={self.max_members} members."
            )
        above = {parts[:depth] for depth in range(len(parts))}
        if parts in self.files or above & self.files or (not is_folder and parts in self.folders):
            raise self.refuse(name, "in the way of another one")
        self.folders |= above
        (self.folders if is_folder else self.files).add(parts)
        return "/".join(parts) + "/" * is_folder

    def refuse(self, name: str, what: str) -> UnsafeArchiveError:
        return UnsafeArchiveError(
            f"{self.archive} was refused: its member {name!r} is {what}. Only plain files and folders are unpacked."
        )


def _extract_zip(archive: Path, folder: Path, census: _Census) -> None:
    with zipfile.ZipFile(archive) as source:
        for member in source.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise census.refuse(member.filename, "a link or a special file")
            if member.flag_bits & 0x1:
                raise census.refuse(member.filename, "encrypted")
            member.filename = census.admit(member.filename, member.file_size, is_folder=member.is_dir())
        # It reads no more of a member than the size that was judged.
        source.extractall(folder, source.infolist())


def _extract_tar(archive: Path, folder: Path, census: _Census) -> None:
    with _open_tar(archive) as source:
        for member in list(_admitted(source, census)):
            path = folder / member.name
            (path if member.isdir() else path.parent).mkdir(parents=True, exist_ok=True)
            # With any filter, `extractall` may write more than was judged: all pieces of a sparse member, and what
            # comes after a negative size.
            if (data := source.extractfile(member)) is not None:
                with data, path.open("xb") as out:
                    shutil.copyfileobj(data, out)
                    if out.tell() != member.size:
                        raise EOFError(
                            f"the member {member.name!r} breaks off after {out.tell()} of {member.size} bytes"
                        )
        # Only at its end does a packed stream tell whether its checksum is right. A bound, since it may be a bomb.
        for _ in range(census.max_bytes // _CHUNK + 1):
            if source.fileobj is None or not source.fileobj.read(_CHUNK):
                break


@contextlib.contextmanager
def _open_tar(archive: Path) -> Iterator[tarfile.TarFile]:
    """A tar archive, packed or not, whose headers cannot fill the memory."""
    with contextlib.ExitStack() as stack:
        file: BinaryIO = stack.enter_context(archive.open("rb"))
        start = file.read(6)
        file.seek(0)
        for magic, module in _PACKINGS.items():
            if start.startswith(magic):
                file = stack.enter_context(importlib.import_module(module).open(file))
        try:
            tar = tarfile.TarFile(fileobj=cast(BinaryIO, _ShortReads(file)))
        # Its first header may be read already, see `_members`.
        except (tarfile.ReadError, ValueError) as error:
            raise UnsafeArchiveError(
                f"{archive} is neither a zip nor a tar archive, or is damaged ({error}). Is the download complete?"
            ) from None
        yield stack.enter_context(tar)


class _ShortReads:
    """A file of which little is read at once: tarfile reads a long name whole, however long the archive says it is."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell, self.close = file.seek, file.tell, file.close

    def read(self, size: int) -> bytes:
        if size > _CHUNK:
            raise tarfile.ReadError(f"a header of {size:,} bytes, more than {_CHUNK:,}")
        return self._file.read(size)


def _admitted(source: tarfile.TarFile, census: _Census) -> Iterator[tarfile.TarInfo]:
    # Members come one by one, so the size is judged before the data of a member are decompressed to skip them.
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
        # tarfile passes on what it meets in headers that should be numbers.
        raise tarfile.ReadError(f"a header makes no sense: {error}") from None


def _publish(temporary: Path, folder: Path) -> None:
    try:
        temporary.rename(folder)
    except OSError:
        # Another process may have unpacked the same archive meanwhile; its folder is as good.
        if not folder.is_dir():
            raise
