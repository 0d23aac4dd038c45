import io
import tarfile

import numpy as np
import pytest
import torch

from helpers.hostile_files import MIB, little_memory
from topomask.data import MissingDataError, UnsafeArchiveError, cifar
from topomask.data.cifar import cifar10

FOLDER = "cifar-10-batches-bin"


def record(number):
    """The record of a picture whose red, green and blue are the number, and twice and thrice that."""
    planes = [np.full(1024, factor * number, np.uint8) for factor in (1, 2, 3)]
    return bytes([number % 10]) + b"".join(plane.tobytes() for plane in planes)


def batches(per_file=4):
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    return {
        name: b"".join(record(per_file * file + number) for number in range(per_file))
        for file, name in enumerate(names)
    }


def write_folder(folder):
    folder.mkdir(parents=True)
    for name, content in batches().items():
        (folder / name).write_bytes(content)


def write_archive(path, members):
    with tarfile.open(path, "w:gz") as out:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))


def check(root):
    train, test = cifar10("train", root=root), cifar10("test", root=root)
    assert (len(train), len(test), train.image_shape) == (20, 4, (3, 32, 32))
    assert train.labels.tolist() == [number % 10 for number in range(20)]
    assert torch.equal(train.inputs[7, :, 5, 9], torch.tensor([7, 14, 21], dtype=torch.uint8))
    assert train.classes[test[0][1]] == "airplane"


def test_the_folder_is_read(tmp_path):
    write_folder(tmp_path / FOLDER)
    check(tmp_path)
    assert len(cifar10("val", root=tmp_path, val_fraction=0.5)) == 10
    assert len(cifar10("train", root=tmp_path, limit=3)) == 3


def test_an_archive_that_is_there_is_unpacked(tmp_path):
    write_archive(tmp_path / "cifar-10-binary.tar.gz", {f"{FOLDER}/{name}": data for name, data in batches().items()})
    check(tmp_path)
    assert (tmp_path / "cifar-10" / FOLDER).is_dir()
    (tmp_path / "cifar-10-binary.tar.gz").unlink()
    check(tmp_path)


def test_a_malicious_archive_is_refused(tmp_path):
    write_archive(tmp_path / "cifar-10-binary.tar.gz", {f"{FOLDER}/test_batch.bin": b"", "../../evil": b"x"})
    with pytest.raises(UnsafeArchiveError, match=r"'../../evil' points outside"):
        cifar10(root=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-10-binary.tar.gz"]


def test_missing_files_are_named(tmp_path):
    with pytest.raises(MissingDataError, match=r"binary version.*download=True.*cs.toronto.edu"):
        cifar10(root=tmp_path)
    write_folder(tmp_path / FOLDER)
    (tmp_path / FOLDER / "data_batch_3.bin").unlink()
    with pytest.raises(MissingDataError, match=r"data_batch_3.bin"):
        cifar10(root=tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (record(1)[:-1], "must hold records of 3073 bytes, but holds 3072"),
        (b"", "but holds 0 bytes"),
        (bytes([10]) + record(1)[1:], "classes below 10, but hold 10"),
    ],
)
def test_files_of_another_format_are_refused(tmp_path, content, message):
    write_folder(tmp_path / FOLDER)
    (tmp_path / FOLDER / "test_batch.bin").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        cifar10("test", root=tmp_path)


def test_a_folder_that_another_process_made_meanwhile_is_taken(tmp_path, monkeypatch):
    archive = tmp_path / "cifar-10-binary.tar.gz"
    write_archive(archive, {f"{FOLDER}/{name}": data for name, data in batches().items()})

    def fetch_slowly(file, folder):
        write_folder(folder / "cifar-10" / FOLDER)
        return folder / file.name

    monkeypatch.setattr(cifar, "fetch", fetch_slowly)
    assert len(cifar10(root=tmp_path, download=True)) == 20
    assert {path.name for path in tmp_path.iterdir()} == {archive.name, "cifar-10"}


def test_a_folder_of_another_content_is_not_taken(tmp_path):
    write_archive(tmp_path / "cifar-10-binary.tar.gz", {f"{FOLDER}/{name}": data for name, data in batches().items()})
    (tmp_path / "cifar-10").mkdir()
    with pytest.raises(FileExistsError, match="must be new"):
        cifar10(root=tmp_path)


def test_an_archive_or_a_file_that_is_too_large_is_refused(tmp_path):
    write_archive(tmp_path / "cifar-10-binary.tar.gz", {f"{FOLDER}/test_batch.bin": bytes(20 * MIB)})
    with (
        little_memory(),
        pytest.raises(UnsafeArchiveError, match=r"'.*test_batch.bin' .* more than `max_bytes`=16777216"),
    ):
        cifar10("test", root=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-10-binary.tar.gz"]
    write_folder(tmp_path / FOLDER)
    with (tmp_path / FOLDER / "test_batch.bin").open("ab") as out:
        out.truncate(1 << 40)
    with (
        little_memory(),
        pytest.raises(ValueError, match=rf"{FOLDER} takes 1,099,511,627,776 bytes, more than `max_bytes`"),
    ):
        cifar10("test", root=tmp_path)
    assert len(cifar10("train", root=tmp_path, max_bytes=10**6)) == 20
    with pytest.raises(ValueError, match="more than `max_bytes`=1,000"):
        cifar10("train", root=tmp_path, max_bytes=1000)
