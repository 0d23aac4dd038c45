"""Tiny-ImageNet-50: every fourth class of Tiny-ImageNet-200, 25,000 and 2,500 colour images of 64 x 64."""

from __future__ import annotations

import zipfile
from pathlib import Path

from topomask.data.archives import damage_named
from topomask.data.class_folders import ImageFolder
from topomask.data.download import RemoteFile, fetch
from topomask.data.labelled_set import InMemorySet, to_memory
from topomask.data.limits import check_bytes, unpacked_limit
from topomask.data.root import data_root, missing
from topomask.support.files import remove_leftovers, write_atomically

_MAX_UNPACKED = 1 << 32
_NAME = "tiny-imagenet-50.zip"
_TOP = "tiny-imagenet-200"
_WHOLE = RemoteFile(
    "tiny-imagenet-200.zip",
    ("https://cs231n.stanford.edu/tiny-imagenet-200.zip", "http://cs231n.stanford.edu/tiny-imagenet-200.zip"),
    sha256="6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
    size=248_100_043,
)


def tiny_imagenet_50(
    split: str = "train",
    *,
    root: str | Path | None = None,
    download: bool = False,
    per_class: int | None = None,
    in_memory: bool = True,
) -> ImageFolder | InMemorySet:
    """Everyday objects in 50 classes, from ``tiny-imagenet-50.zip`` in the data root.

    Args:
        split: ``"train"`` or ``"val"``.
        root: The data root, see :func:`topomask.data.data_root`.
        download: If the archive is missing, make it from ``tiny-imagenet-200.zip``, which is downloaded if needed.
        per_class: Keep only the first this many images of each class.
        in_memory: Decode all images now and keep them, 300 MB; else they are decoded on access.

    References:
        Le and Yang (2015), Tiny ImageNet visual recognition challenge.
    """
    folder = data_root(root)
    archive = folder / _NAME
    if not archive.exists():
        if not download:
            size = f"{_WHOLE.size >> 20} MB"
            how = f"It is made from {_WHOLE.name}, which is downloaded ({size}) unless it is in the same folder."
            raise missing("tiny-imagenet-50", folder, [_NAME], how, download=True)
        whole = fetch(_WHOLE, folder)
        # Another process may have made it during the download.
        if not archive.exists():
            make_subset(whole, archive)
    found = ImageFolder(archive, split, per_class=per_class)
    found.mean, found.std = (0.4774, 0.4507, 0.3985), (0.2765, 0.2669, 0.2785)
    return to_memory(found) if in_memory else found


def make_subset(whole: Path, subset: Path, every: int = 4) -> Path:
    """Write an archive with the classes 0, `every`, 2 `every`, ... of the published archive, in the order of their ids.

    It contains ``train/<id>/``, ``val/<id>/`` and ``classes.txt``.
    """
    remove_leftovers(subset.parent)
    write_atomically(subset, lambda temporary: _pick(whole, temporary, every))
    return subset


def _pick(whole: Path, subset: Path, every: int) -> None:
    try:
        with (
            damage_named(whole),
            zipfile.ZipFile(whole) as source,
            zipfile.ZipFile(subset, "w", zipfile.ZIP_STORED) as target,
        ):
            size = sum(member.file_size for member in source.infolist())
            check_bytes(whole, size, unpacked_limit(whole, most=_MAX_UNPACKED))
            ids = sorted(source.read(f"{_TOP}/wnids.txt").decode().split())[::every]
            for name in sorted(source.namelist()):
                parts = name.split("/")
                if len(parts) == 5 and parts[1] == "train" and parts[2] in ids and name.endswith(".JPEG"):
                    _write(target, f"train/{parts[2]}/{parts[4]}", source.read(name))
            for line in sorted(source.read(f"{_TOP}/val/val_annotations.txt").decode().splitlines()):
                image, identity = line.split("\t")[:2]
                if identity in ids:
                    _write(target, f"val/{identity}/{image}", source.read(f"{_TOP}/val/images/{image}"))
            words = (line.partition("\t") for line in source.read(f"{_TOP}/words.txt").decode().splitlines())
            lines = [f"{identity}\t{name}\n" for identity, _, name in words if identity in ids]
            _write(target, "classes.txt", "".join(sorted(lines)).encode())
    except KeyError as error:
        raise ValueError(
            f"{whole} is not Tiny-ImageNet-200 as published: {error} Delete it and get it again."
        ) from error


def _write(target: zipfile.ZipFile, name: str, content: bytes) -> None:
    # A fixed date, so that the same images give the same archive.
    target.writestr(zipfile.ZipInfo(name, date_time=(2020, 1, 1, 0, 0, 0)), content)
