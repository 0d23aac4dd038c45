"""MNIST and Fashion-MNIST: 60,000 and 10,000 grey images of 28 x 28, in IDX files."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from topomask.data.download import RemoteFile, fetch
from topomask.data.labelled_set import InMemorySet
from topomask.data.limits import how_to_raise, read_up_to, unpacked_limit
from topomask.data.root import data_root, missing
from topomask.data.splits import SPLITS, check_split, choose

# Unsigned bytes, the only type of the IDX format that occurs here.
_UBYTE = 0x08
_REPAIR = "Delete it and get it again (download=True, or --data.download True on the command line)."


class _Source(NamedTuple):
    """A published set: folders to download from, and size and SHA-256 of each of ``_FILES``."""

    urls: tuple[str, ...]
    files: tuple[tuple[int, str], ...]
    classes: tuple[str, ...]
    mean: float
    std: float


_FILES = tuple(f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
_SOURCES = {
    "mnist": _Source(
        ("https://storage.googleapis.com/cvdf-datasets/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
        (
            (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
            (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
            (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
            (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        ),
        tuple("0123456789"),
        mean=0.1307,
        std=0.3081,
    ),
    "fashion-mnist": _Source(
        (
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ),
        (
            (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
            (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
            (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
            (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
        ),
        ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        mean=0.2860,
        std=0.3530,
    ),
}


def mnist(
    split: str = "train",
    *,
    root: str | Path | None = None,
    download: bool = False,
    val_fraction: float = 0.0,
    split_seed: int = 0,
    limit: int | None = None,
    max_bytes: int | None = None,
) -> InMemorySet:
    """Handwritten digits, from the folder ``mnist`` of the data root.

    Args:
        split: ``"train"``, ``"val"`` (held out of the training set) or ``"test"``.
        root: The data root, see :func:`topomask.data.data_root`.
        download: Download files that are missing.
        val_fraction: Fraction of the training set to hold out as ``"val"``.
        split_seed: Seed of the held-out part.
        limit: Keep only the first this many.
        max_bytes: Largest size of a file, unpacked. Default: the environment variable ``TOPOMASK_MAX_BYTES``, else 50
            times the size of the file, between 16 MiB and 512 MiB.

    References:
        LeCun et al. (1998), Gradient-based learning applied to document recognition.
    """
    everything = _read("mnist", split, root, download, max_bytes)
    part = choose(everything.labels, split, val_fraction=val_fraction, split_seed=split_seed, limit=limit)
    return everything.subset(part)


def fashion_mnist(
    split: str = "train",
    *,
    root: str | Path | None = None,
    download: bool = False,
    val_fraction: float = 0.0,
    split_seed: int = 0,
    limit: int | None = None,
    max_bytes: int | None = None,
) -> InMemorySet:
    """Images of clothes, from the folder ``fashion-mnist`` of the data root; the arguments are those of :func:`mnist`.

    References:
        Xiao et al. (2017), Fashion-MNIST.
    """
    everything = _read("fashion-mnist", split, root, download, max_bytes)
    part = choose(everything.labels, split, val_fraction=val_fraction, split_seed=split_seed, limit=limit)
    return everything.subset(part)


def _read(name: str, split: str, root: str | Path | None, download: bool, max_bytes: int | None) -> InMemorySet:
    source = _SOURCES[name]
    images_file, labels_file = _find(name, source, split, root, download)
    images, labels = read_idx(images_file, 3, max_bytes), read_idx(labels_file, 1, max_bytes)
    if len(images) != len(labels) or not len(images):
        raise ValueError(
            f"{images_file} holds {len(images)} images, but {labels_file.name} in the same folder holds {len(labels)} "
            "labels; both must hold the same number, at least 1."
        )
    if int(labels.max()) >= len(source.classes):
        raise ValueError(f"{labels_file} must hold labels below {len(source.classes)}, but holds {int(labels.max())}.")
    return InMemorySet(images[:, None], labels, source.classes, (source.mean,), (source.std,))


def _find(name: str, source: _Source, split: str, root: str | Path | None, download: bool) -> list[Path]:
    """The files of the images and of the labels, compressed or not."""
    check_split(split, SPLITS, name)
    folder = data_root(root) / name
    found = []
    for file, (size, sha256) in zip(_FILES, source.files, strict=True):
        if file.startswith("t10k") == (split == "test"):
            path = folder / file
            plain = path.with_suffix("")
            if not path.exists() and plain.exists():
                path = plain
            elif download:
                path = fetch(RemoteFile(file, tuple(url + file for url in source.urls), sha256, size), folder)
            found.append(path)
    if not all(path.exists() for path in found):
        needed = [f"{path.name.removesuffix('.gz')}.gz" for path in found]
        raise missing(name, folder, needed, f"The files are at {source.urls[0]}.", download=True)
    return found


def read_idx(path: Path, num_dims: int, max_bytes: int | None = None) -> Tensor:
    """Read an IDX file (a header of big-endian integers, then bytes), plain or compressed by gzip, as a uint8 tensor.

    It must have `num_dims` dimensions, 1 for labels and 3 for images, and at most `max_bytes`, see :func:`mnist`.
    """
    limit, expected = unpacked_limit(path, max_bytes), bytes((0, 0, _UBYTE, num_dims))
    with path.open("rb") as file:
        is_compressed = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path, "rb") if is_compressed else path.open("rb") as opened:
            data = cast(BinaryIO, opened)
            magic, header = data.read(4), data.read(4 * num_dims)
            if magic != expected:
                raise ValueError(
                    f"{path} must be an IDX file of unsigned bytes in {num_dims} dimensions, starting with "
                    f"{expected.hex()}, but starts with {magic.hex()}. {_REPAIR}"
                )
            if len(header) < 4 * num_dims:
                raise ValueError(f"{path} is truncated: its header is incomplete. {_REPAIR}")
            shape = struct.unpack(f">{num_dims}I", header)
            size = math.prod(shape)
            if size > limit:
                how = f"{how_to_raise('max_bytes')} {_REPAIR}"
                raise ValueError(f"The header of {path} says {shape} bytes, more than `max_bytes`={limit:,}. {how}")
            content = read_up_to(data, size)
            if len(content) != size or data.read(1):
                came = "more" if len(content) == size else f"{len(content)}"
                raise ValueError(f"{path} must hold {size} bytes after its header {shape}, but holds {came}. {_REPAIR}")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged or truncated: {error}. {_REPAIR}") from error
    return torch.from_numpy(np.ndarray(shape, np.uint8, content))
