"""Unpacking of zip and tar archives that nobody vouches for."""

from __future__ import annotations

import contextlib
import gzip
import re
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from topomask.support.files import remove_leftovers, temporary_beside

_CHUNK = 1 << 20
_GIB = 1 << 30
# What is raised on bytes that are wrong, an OSError of bz2 aside.
DAMAGE: tuple[type[Exception], ...] = (
    EOFError,
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


def extract(archive: Path, folder: Path, *, max_bytes: int = 4 * _GIB, max_members: int = 1_000_000) -> Path:
    """Unpack a zip or tar archive into a new folder, all of it or nothing.

    Every member is looked at before the first byte is written. Refused by name are paths that leave the folder
    (absolute, with a drive, or with ``..``), links of any kind, devices and other special files, encrypted members, two
    members of one name, and archives above the limits. Files get the default permissions, whatever the archive says.

    Args:
        archive: The archive.
        folder: The folder to make; must not exist. It appears once everything is in it.
        max_bytes: Largest sum of the sizes of the members.
        max_members: Largest number of members.

    Returns:
        The folder.
    """
    if folder.exists():
        raise FileExistsError(f"`folder` must be new, but {folder} exists. Delete it first, or choose another.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder.parent)
    temporary = temporary_beside(folder)
    temporary.mkdir()
    try:
        with damage_named(archive, kind=UnsafeArchiveError):
            if zipfile.is_zipfile(archive):
                _extract_zip(archive, temporary, max_bytes, max_members)
            elif tarfile.is_tarfile(archive):
                _extract_tar(archive, temporary, max_bytes, max_members)
            else:
                raise UnsafeArchiveError(f"{archive} is neither a zip nor a tar archive. Is the download complete?")
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
        # bz2 has an OSError without a number; those of a disk have one.
        if isinstance(error, OSError) and error.errno is not None:
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

    def admit(self, name: str, size: int, *, is_folder: bool) -> tuple[str, ...]:
        parts = safe_parts(name, self.archive)
        self.total += max(size, 0)
        if self.total > self.max_bytes:
            raise UnsafeArchiveError(
                f"{self.archive} was refused: up to its member {name!r} it unpacks to {self.total} bytes, more than "
                f"`max_bytes`={self.max_bytes}."
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
        return parts

    def refuse(self, name: str, what: str) -> UnsafeArchiveError:
        return UnsafeArchiveError(
            f"{self.archive} was refused: its member {name!r} is {what}. Only plain files and folders are unpacked."
        )


def _extract_zip(archive: Path, folder: Path, max_bytes: int, max_members: int) -> None:
    census = _Census(archive, max_bytes, max_members)
    with zipfile.ZipFile(archive) as source:
        admitted = []
        for member in source.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise census.refuse(member.filename, "a link or a special file")
            if member.flag_bits & 0x1:
                raise census.refuse(member.filename, "encrypted")
            parts = census.admit(member.filename, member.file_size, is_folder=member.is_dir())
            admitted.append((member, parts))
        for member, parts in admitted:
            if member.is_dir():
                _make_folder(folder, parts)
            else:
                with source.open(member) as data:
                    _write(data, folder, parts, member.file_size)


def _extract_tar(archive: Path, folder: Path, max_bytes: int, max_members: int) -> None:
    with tarfile.open(archive) as source:
        admitted = list(_admitted(source, _Census(archive, max_bytes, max_members)))
        for member, parts in admitted:
            data = source.extractfile(member) if member.isreg() else None
            if data is None:
                _make_folder(folder, parts)
            else:
                with data:
                    _write(data, folder, parts, member.size)
        # Only at its end does a packed stream tell whether its checksum is right. A bound, since it may be a bomb.
        for _ in range(max_bytes // _CHUNK + 1):
            if source.fileobj is None or not source.fileobj.read(_CHUNK):
                break


def _admitted(source: tarfile.TarFile, census: _Census) -> Iterator[tuple[tarfile.TarInfo, tuple[str, ...]]]:
    # Members come one by one, so the size is judged before the data of a member are decompressed to skip them.
    for member in source:
        if member.issym() or member.islnk():
            raise census.refuse(member.name, f"a link to {member.linkname!r}")
        if not (member.isreg() or member.isdir()):
            raise census.refuse(member.name, "a device or another special file")
        yield member, census.admit(member.name, member.size, is_folder=member.isdir())


def _make_folder(folder: Path, parts: tuple[str, ...]) -> None:
    folder.joinpath(*parts).mkdir(parents=True, exist_ok=True)


def _write(data: IO[bytes], folder: Path, parts: tuple[str, ...], size: int) -> None:
    path = folder.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with path.open("xb") as out:
        while chunk := data.read(_CHUNK):
            written += len(chunk)
            # The sizes that were judged are those that the archive declares.
            if written > size:
                raise UnsafeArchiveError(f"The member {'/'.join(parts)!r} is larger than the archive says.")
            out.write(chunk)
    if written != size:
        raise EOFError(f"the member {'/'.join(parts)!r} breaks off after {written} of {size} bytes")


def _publish(temporary: Path, folder: Path) -> None:
    try:
        temporary.rename(folder)
    except OSError:
        # Another process may have unpacked the same archive meanwhile; its folder is as good.
        if not folder.is_dir():
            raise
