"""CIFAR-10: 50,000 and 10,000 colour images of 32 x 32, in the binary version of the files.

The Python version is not supported: it consists of pickles, which can run code when they are loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from topomask.data.archives import extract
from topomask.data.download import RemoteFile, fetch
from topomask.data.labelled_set import InMemorySet
from topomask.data.limits import check_bytes, limit_of, unpacked_limit
from topomask.data.root import data_root, missing
from topomask.data.splits import SPLITS, check_split, choose

# One byte for the class, then the red, green and blue planes.
_RECORD = 1 + 3 * 32 * 32
_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_INNER_FOLDER = "cifar-10-batches-bin"
_ARCHIVE = RemoteFile(
    "cifar-10-binary.tar.gz",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    size=170_052_171,
)


def cifar10(
    split: str = "train",
    *,
    root: str | Path | None = None,
    download: bool = False,
    val_fraction: float = 0.0,
    split_seed: int = 0,
    limit: int | None = None,
    max_bytes: int | None = None,
) -> InMemorySet:
    """Images of animals and vehicles, from ``cifar-10-batches-bin`` or ``cifar-10-binary.tar.gz`` in the data root.

    The arguments are those of :func:`topomask.data.mnist.mnist`; `max_bytes` limits the size of the unpacked archive,
    and of the files of a split.

    References:
        Krizhevsky (2009), Learning multiple layers of features from tiny images.
    """
    check_split(split, SPLITS, "cifar10")
    names = ["test_batch.bin"] if split == "test" else [f"data_batch_{number}.bin" for number in range(1, 6)]
    everything = _read(_find(data_root(root), names, download, max_bytes), limit_of("max_bytes", max_bytes))
    part = choose(everything.labels, split, val_fraction=val_fraction, split_seed=split_seed, limit=limit)
    return everything.subset(part)


def _find(folder: Path, names: Sequence[str], download: bool, max_bytes: int | None) -> list[Path]:
    """The files of the split; an existing archive is unpacked next to itself."""
    unpacked = folder / "cifar-10"
    place = next((each for each in (folder, unpacked) if (each / _INNER_FOLDER).is_dir()), unpacked) / _INNER_FOLDER
    if not place.is_dir():
        if not download and not (folder / _ARCHIVE.name).exists():
            expected = f"{_INNER_FOLDER}/ or {_ARCHIVE.name} (the binary version)"
            raise missing("cifar10", folder, [expected], f"The archive is at {_ARCHIVE.urls[0]}.", download=True)
        archive = fetch(_ARCHIVE, folder)
        try:
            extract(archive, unpacked, max_bytes=unpacked_limit(archive, max_bytes))
        except FileExistsError:
            # Another process may have unpacked it meanwhile.
            if not place.is_dir():
                raise
    paths = [place / name for name in names]
    if not all(path.is_file() for path in paths):
        raise missing("cifar10", place, names, f"Delete the folder and get {_ARCHIVE.name} again.")
    return paths


def _read(paths: Sequence[Path], max_bytes: int) -> InMemorySet:
    check_bytes(paths[0].parent, sum(path.stat().st_size for path in paths), max_bytes)
    batches = [np.fromfile(path, dtype=np.uint8) for path in paths]
    for path, content in zip(paths, batches, strict=True):
        if not content.size or content.size % _RECORD:
            raise ValueError(
                f"{path} must hold records of {_RECORD} bytes, but holds {content.size} bytes. Delete its folder and "
                f"get {_ARCHIVE.name} again."
            )
    records = torch.from_numpy(np.concatenate(batches)).view(-1, _RECORD)
    labels = records[:, 0].long()
    if int(labels.max()) >= len(_CLASSES):
        raise ValueError(
            f"The files in {paths[0].parent} must hold classes below {len(_CLASSES)}, but hold {int(labels.max())}. "
            "Is this the binary version of CIFAR-10?"
        )
    images = records[:, 1:].reshape(-1, 3, 32, 32)
    return InMemorySet(images, labels, _CLASSES, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))
