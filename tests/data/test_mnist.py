import gzip
import struct

import numpy as np
import pytest
import torch

from helpers.data_files import write_idx, write_mnist
from helpers.hostile_files import MIB, little_memory, zeros_gz
from topomask.data import DownloadError, MissingDataError
from topomask.data.mnist import fashion_mnist, mnist, read_idx

SETS = [("mnist", mnist), ("fashion-mnist", fashion_mnist)]
IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


@pytest.mark.parametrize(("name", "load"), SETS)
def test_files_are_read(tmp_path, name, load):
    write_mnist(tmp_path / name)
    train, test = load("train", root=tmp_path), load("test", root=tmp_path)
    assert (len(train), len(test), train.image_shape, train.num_classes) == (30, 10, (1, 28, 28), 10)
    assert train.inputs[:, 0, 0, 0].tolist() == list(range(30))
    assert train.labels.tolist() == [number % 10 for number in range(30)]


def test_validation_is_held_out_of_training_and_limits_come_after(tmp_path):
    write_mnist(tmp_path / "mnist")
    parts = [mnist(split, root=tmp_path, val_fraction=1 / 3) for split in ("train", "val")]
    numbers = [set(part.inputs[:, 0, 0, 0].tolist()) for part in parts]
    assert (len(numbers[0]), len(numbers[1])) == (20, 10)
    assert numbers[0] | numbers[1] == set(range(30))
    assert mnist("train", root=tmp_path, limit=12).inputs[:, 0, 0, 0].tolist() == list(range(12))
    assert len(mnist("test", root=tmp_path, limit=3)) == 3


def test_uncompressed_files_are_read_too(tmp_path):
    write_mnist(tmp_path / "mnist")
    for path in list((tmp_path / "mnist").iterdir()):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert len(mnist("test", root=tmp_path)) == 10


def test_the_root_may_come_from_the_environment(tmp_path, monkeypatch):
    write_mnist(tmp_path / "mnist")
    monkeypatch.setenv("TOPOMASK_DATA", str(tmp_path))
    assert len(mnist()) == 30


@pytest.mark.parametrize(("name", "load"), SETS)
def test_missing_files_are_named(tmp_path, name, load):
    write_mnist(tmp_path / name)
    (tmp_path / name / LABELS).unlink()
    with pytest.raises(MissingDataError) as caught:
        load("train", root=tmp_path)
    for part in (name, str(tmp_path / name), IMAGES, LABELS, "download=True", "TOPOMASK_DATA", "http"):
        assert part in str(caught.value)
    assert len(load("test", root=tmp_path)) == 10


def test_an_offline_machine_is_told_what_to_do(tmp_path, monkeypatch):
    def offline(*arguments, **options):
        raise OSError("no network")

    monkeypatch.setattr("urllib.request.urlopen", offline)
    with pytest.raises(DownloadError, match=r"no network.*offline.*another one and copy it to"):
        mnist("train", root=tmp_path, download=True)


def test_downloads_go_where_the_loader_looks(tmp_path, monkeypatch):
    asked = []

    def fetch(file, folder):
        asked.append(file)
        if not (folder / file.name).exists():
            write_mnist(folder)
        return folder / file.name

    monkeypatch.setattr("topomask.data.mnist.fetch", fetch)
    assert len(mnist("test", root=tmp_path, download=True)) == 10
    assert [file.name[:11] for file in asked] == ["t10k-images", "t10k-labels"]
    for file in asked:
        assert len(file.sha256) == 64
        assert all(url.endswith(file.name) for url in file.urls)


def corrupt(tmp_path, content):
    path = tmp_path / "file.gz"
    path.write_bytes(content)
    return path


def header(*shape, kind=8):
    return bytes((0, 0, kind, len(shape))) + struct.pack(f">{len(shape)}I", *shape)


@pytest.mark.parametrize("pack", [gzip.compress, lambda content: content])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header(3) + b"abc", "must be an IDX file of unsigned bytes in 3 dimensions, starting with 00000803"),
        (header(1, 1, 1, kind=13) + b"abcd", "but starts with 00000d03"),
        (b"", "but starts with ."),
        (header(2, 2, 2)[:9], "truncated: its header is incomplete"),
        (header(2, 2, 2) + b"1234567", r"must hold 8 bytes after its header \(2, 2, 2\), but holds 7"),
        (header(2, 2, 2) + b"123456789", "but holds more"),
        (header(2**31, 2**31, 2**31) + b"1", "more than"),
    ],
)
def test_wrong_idx_files_are_refused(tmp_path, pack, content, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_idx(corrupt(tmp_path, pack(content)), num_dims=3)
    assert str(tmp_path) in str(caught.value)
    assert "get it again" in str(caught.value)


@pytest.mark.parametrize("kept", [12, 40, -9])
def test_compressed_files_that_are_cut_short_are_refused(tmp_path, kept):
    rng = np.random.default_rng(0)
    write_idx(tmp_path / "file.gz", rng.integers(0, 256, size=(5, 4, 4)))
    path = corrupt(tmp_path, (tmp_path / "file.gz").read_bytes()[:kept])
    with pytest.raises(ValueError, match="damaged or truncated"):
        read_idx(path, num_dims=3)


def test_a_flipped_bit_is_noticed(tmp_path):
    write_idx(tmp_path / "file.gz", np.zeros((5, 40, 40)))
    content = bytearray((tmp_path / "file.gz").read_bytes())
    content[-6] ^= 1
    with pytest.raises(ValueError, match="damaged"):
        read_idx(corrupt(tmp_path, content), num_dims=3)


def test_idx_round_trip_gives_writable_memory(tmp_path):
    array = np.random.default_rng(0).integers(0, 256, size=(3, 2, 5))
    write_idx(tmp_path / "file.gz", array)
    found = read_idx(tmp_path / "file.gz", num_dims=3)
    assert torch.equal(found, torch.from_numpy(array.astype(np.uint8)))
    found += 1


def test_pictures_and_labels_must_match(tmp_path):
    write_mnist(tmp_path / "mnist")
    write_idx(tmp_path / "mnist" / LABELS, np.zeros(29))
    with pytest.raises(ValueError, match=r"30 images.*29 labels"):
        mnist(root=tmp_path)
    write_idx(tmp_path / "mnist" / LABELS, np.full(30, 10))
    with pytest.raises(ValueError, match="must hold labels below 10, but holds 10"):
        mnist(root=tmp_path)


def test_a_small_file_that_becomes_large_is_refused_unless_it_is_trusted(tmp_path, monkeypatch):
    size = 20 * MIB
    path = corrupt(tmp_path, zeros_gz(header(20, 1024, 1024), size))
    assert path.stat().st_size < MIB
    message = r"\(20, 1024, 1024\) bytes, more than `max_bytes`=16,777,216. .*max_bytes=.*TOPOMASK_MAX_BYTES"
    with little_memory(), pytest.raises(ValueError, match=message):
        read_idx(path, num_dims=3)
    with little_memory(size + 8 * MIB):
        assert read_idx(path, 3, max_bytes=size).shape == (20, 1024, 1024)
    monkeypatch.setenv("TOPOMASK_MAX_BYTES", str(size))
    assert read_idx(path, 3).shape == (20, 1024, 1024)


def test_the_limit_reaches_the_files_of_a_set(tmp_path):
    write_mnist(tmp_path / "mnist")
    with pytest.raises(ValueError, match=r"train-images.*more than `max_bytes`=1,000"):
        mnist(root=tmp_path, max_bytes=1000)


def test_a_header_that_lies_takes_no_memory(tmp_path):
    """A file that says it holds what may be held, but does not."""
    for pack in (gzip.compress, bytes):
        with little_memory(), pytest.raises(ValueError, match="but holds 3"):
            read_idx(corrupt(tmp_path, pack(header(1, 2048, 2048) + b"abc")), num_dims=3)
