"""MNIST and Fashion-MNIST: 60,000 and 10,000 grey pictures of 28 x 28, in IDX files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from topomask.data.download import RemoteFile, fetch
from topomask.data.idx import read_idx
from topomask.data.labelled_set import InMemorySet
from topomask.data.root import data_root, missing
from topomask.data.splits import check_split, choose

_MNIST_URLS = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)
_FASHION_URLS = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)
_CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def _remote(urls: Sequence[str], name: str, size: int, sha256: str) -> RemoteFile:
    return RemoteFile(name, tuple(url + name for url in urls), sha256, size)


# fmt: off
_MNIST_FILES = (
    _remote(_MNIST_URLS, "train-images-idx3-ubyte.gz", 9_912_422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    _remote(_MNIST_URLS, "train-labels-idx1-ubyte.gz", 28_881,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    _remote(_MNIST_URLS, "t10k-images-idx3-ubyte.gz", 1_648_877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    _remote(_MNIST_URLS, "t10k-labels-idx1-ubyte.gz", 4_542,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
)
_FASHION_FILES = (
    _remote(_FASHION_URLS, "train-images-idx3-ubyte.gz", 26_421_880,
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
    _remote(_FASHION_URLS, "train-labels-idx1-ubyte.gz", 29_515,
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
    _remote(_FASHION_URLS, "t10k-images-idx3-ubyte.gz", 4_422_102,
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
    _remote(_FASHION_URLS, "t10k-labels-idx1-ubyte.gz", 5_148,
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
)
# fmt: on


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
        download: Download the files that are not there.
        val_fraction: The share of the training set that is held out for ``"val"``.
        split_seed: Seed of what is held out.
        limit: Keep the first so many only.
        max_bytes: Largest size of a file, unpacked. Default: the environment variable ``TOPOMASK_MAX_BYTES``, else 50
            times the size of the file, within 16 MiB and 512 MiB.

    References:
        LeCun et al. (1998), Gradient-based learning applied to document recognition.
    """
    files = _find("mnist", _MNIST_FILES, split, root, download)
    everything = _read(files, tuple("0123456789"), 0.1307, 0.3081, max_bytes)
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
    """Pictures of clothes, from the folder ``fashion-mnist`` of the data root.

    Args:
        split: ``"train"``, ``"val"`` (held out of the training set) or ``"test"``.
        root: The data root, see :func:`topomask.data.data_root`.
        download: Download the files that are not there.
        val_fraction: The share of the training set that is held out for ``"val"``.
        split_seed: Seed of what is held out.
        limit: Keep the first so many only.
        max_bytes: Largest size of a file, unpacked. Default: the environment variable ``TOPOMASK_MAX_BYTES``, else 50
            times the size of the file, within 16 MiB and 512 MiB.

    References:
        Xiao et al. (2017), Fashion-MNIST.
    """
    files = _find("fashion-mnist", _FASHION_FILES, split, root, download)
    everything = _read(files, _CLOTHES, 0.2860, 0.3530, max_bytes)
    part = choose(everything.labels, split, val_fraction=val_fraction, split_seed=split_seed, limit=limit)
    return everything.subset(part)


def _find(
    name: str, remote_files: Sequence[RemoteFile], split: str, root: str | Path | None, download: bool
) -> tuple[Path, Path]:
    """The files of the pictures and of the labels, compressed or not."""
    check_split(split, ("train", "val", "test"), name)
    folder = data_root(root) / name
    needed = [file for file in remote_files if file.name.startswith("t10k" if split == "test" else "train")]
    found = []
    for file in needed:
        path = folder / file.name
        plain = path.with_suffix("")
        if not path.exists() and plain.exists():
            path = plain
        elif download:
            path = fetch(file, folder)
        found.append(path)
    if not all(path.exists() for path in found):
        raise missing(
            name,
            folder,
            [file.name for file in needed],
            f"They are at {remote_files[0].urls[0]} and beside.",
            download=True,
        )
    images, labels = found
    return images, labels


def _read(
    files: tuple[Path, Path], classes: tuple[str, ...], mean: float, std: float, max_bytes: int | None
) -> InMemorySet:
    images, labels = read_idx(files[0], 3, max_bytes), read_idx(files[1], 1, max_bytes)
    if len(images) != len(labels) or not len(images):
        raise ValueError(
            f"{files[0]} holds {len(images)} pictures, but {files[1].name} beside it holds {len(labels)} labels; both "
            "must hold the same number of at least 1."
        )
    if int(labels.max()) >= len(classes):
        raise ValueError(f"{files[1]} must hold labels below {len(classes)}, but holds {int(labels.max())}.")
    return InMemorySet(images[:, None], labels, classes, (mean,), (std,))
