import io
import zipfile

import pytest
from PIL import Image

from helpers.data_files import picture
from helpers.hostile_files import MIB, little_memory
from topomask.data import ImageFolder, InMemorySet, MissingDataError, tiny_imagenet
from topomask.data.tiny_imagenet import make_subset, tiny_imagenet_50

IDS = [f"n{number:08d}" for number in range(8)]


def write_whole(path):
    """An archive laid out as tiny-imagenet-200.zip is, of 8 classes, with colours that tell them apart."""

    def jpeg(number):
        out = io.BytesIO()
        image = Image.new("L", (64, 64), 20) if number == 0 else picture((30 * number, 0, 0), (64, 64))
        image.save(out, "JPEG")
        return out.getvalue()

    with zipfile.ZipFile(path, "w") as out:
        top = "tiny-imagenet-200"
        out.writestr(f"{top}/wnids.txt", "\n".join(reversed(IDS)))
        out.writestr(f"{top}/words.txt", "".join(f"{name}\tword {name[-1]}\n" for name in [*IDS, "n99999999"]))
        for number, name in enumerate(IDS):
            out.writestr(f"{top}/train/{name}/{name}_boxes.txt", "boxes")
            for copy in range(3):
                out.writestr(f"{top}/train/{name}/images/{name}_{copy}.JPEG", jpeg(number))
            out.writestr(f"{top}/val/images/val_{number}.JPEG", jpeg(number))
        lines = [f"val_{number}.JPEG\t{name}\t0\t0\t1\t1\n" for number, name in enumerate(IDS)]
        out.writestr(f"{top}/val/val_annotations.txt", "".join(lines))
        out.writestr(f"{top}/test/images/test_0.JPEG", b"")
    return path


@pytest.fixture
def root(tmp_path):
    write_whole(tmp_path / "tiny-imagenet-200.zip")
    return tmp_path


def test_the_subset_is_made_of_every_fourth_class(root):
    archive = make_subset(root / "tiny-imagenet-200.zip", root / "subset.zip")
    with zipfile.ZipFile(archive) as source:
        assert source.namelist() == [
            *(f"train/{name}/{name}_{copy}.JPEG" for name in (IDS[0], IDS[4]) for copy in range(3)),
            f"val/{IDS[0]}/val_0.JPEG",
            f"val/{IDS[4]}/val_4.JPEG",
            "classes.txt",
        ]
    first = archive.read_bytes()
    assert make_subset(root / "tiny-imagenet-200.zip", root / "subset.zip").read_bytes() == first


def test_it_is_made_when_asked_for_and_read(root):
    with pytest.raises(MissingDataError, match=r"tiny-imagenet-50.zip.*download=True"):
        tiny_imagenet_50(root=root)
    train = tiny_imagenet_50(root=root, download=True)
    assert isinstance(train, InMemorySet)
    assert (len(train), train.classes, train.image_shape) == (6, ("word 0", "word 4"), (3, 64, 64))
    assert train.inputs[0, :, 0, 0].tolist() == [20, 20, 20]
    val = tiny_imagenet_50("val", root=root, in_memory=False)
    assert isinstance(val, ImageFolder)
    assert val.labels.tolist() == [0, 1]
    assert val.mean == train.mean != ImageFolder.mean


def test_another_archive_is_refused_and_leaves_nothing(tmp_path):
    with zipfile.ZipFile(tmp_path / "tiny-imagenet-200.zip", "w") as out:
        out.writestr("other.txt", b"")
    with pytest.raises(ValueError, match="not Tiny-ImageNet-200 as published"):
        tiny_imagenet_50(root=tmp_path, download=True)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny-imagenet-200.zip"]


def test_an_archive_that_another_process_made_meanwhile_is_taken(root, monkeypatch):
    def fetch_slowly(file, folder):
        make_subset(folder / file.name, folder / "tiny-imagenet-50.zip")
        monkeypatch.setattr(tiny_imagenet, "make_subset", None)
        return folder / file.name

    monkeypatch.setattr(tiny_imagenet, "fetch", fetch_slowly)
    assert len(tiny_imagenet_50(root=root, download=True)) == 6


def test_a_damaged_archive_is_named_and_leaves_nothing(tmp_path):
    whole = tmp_path / "tiny-imagenet-200.zip"
    name = "tiny-imagenet-200/wnids.txt"
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr(name, "\n".join(IDS) * 20)
    content = bytearray(whole.read_bytes())
    # The block of the stream becomes one of a kind that does not exist.
    content[30 + len(name)] = 0xFF
    whole.write_bytes(content)
    with pytest.raises(ValueError, match=r"tiny-imagenet-200.zip cannot be read: .*damaged.* get it again"):
        tiny_imagenet_50(root=tmp_path, download=True)
    assert list(tmp_path.iterdir()) == [whole]


def test_an_archive_that_becomes_large_is_refused(tmp_path, monkeypatch):
    whole = write_whole(tmp_path / "tiny-imagenet-200.zip")
    with zipfile.ZipFile(whole, "a", zipfile.ZIP_DEFLATED) as out:
        out.writestr("tiny-imagenet-200/train/n00000000/images/big.JPEG", bytes(20 * MIB))
    with (
        little_memory(),
        pytest.raises(ValueError, match=r"tiny-imagenet-200.zip takes .* more than `max_bytes`=16,777,216"),
    ):
        make_subset(whole, tmp_path / "subset.zip")
    assert list(tmp_path.iterdir()) == [whole]
    monkeypatch.setenv("TOPOMASK_MAX_BYTES", str(30 * MIB))
    assert make_subset(whole, tmp_path / "subset.zip").is_file()
