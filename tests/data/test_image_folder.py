import pickle
import zipfile

import pytest
import torch
from PIL import Image

from helpers.data_files import picture, write_pictures, zip_folder
from helpers.hostile_files import MIB, little_memory
from topomask.data import Batches, ImageFolder, InMemorySet, MissingDataError, UnsafeArchiveError, load, to_memory


@pytest.fixture(params=["folder", "zip", "zip in a folder"])
def pictures(request, tmp_path):
    """A folder and archives with the same pictures."""
    write_pictures(tmp_path / "pets")
    if request.param == "folder":
        return tmp_path / "pets"
    return zip_folder(tmp_path / "pets", tmp_path / "pets.zip", prefix="pets/" if "in a" in request.param else "")


def test_pictures_and_classes_are_found(pictures):
    train = ImageFolder(pictures)
    assert (len(train), train.classes, train.image_shape) == (8, ("blue", "red"), (3, 8, 8))
    assert train.labels.tolist() == [0] * 4 + [1] * 4
    image, label = train[5]
    assert (label, image.dtype, image[:, 3, 4].tolist()) == (1, torch.uint8, [255, 0, 0])
    assert len(ImageFolder(pictures, "val")) == 8


def test_workers_read_the_same_with_handles_of_their_own(pictures):
    train = ImageFolder(pictures)
    # The parent has its handle open, which forked workers must not share.
    train[0]
    batches = [list(Batches(train, 3, seed=0, num_workers=workers).epoch(0)) for workers in (0, 1)]
    for one, two in zip(*batches, strict=True):
        assert torch.equal(one[0], two[0])
        assert torch.equal(one[1], two[1])


def test_a_copy_for_another_process_opens_its_own_handle(pictures):
    train = ImageFolder(pictures)
    train[0]
    copy = pickle.loads(pickle.dumps(train))
    assert torch.equal(copy[6][0], train[6][0])


def test_decoding_into_memory(pictures):
    train = ImageFolder(pictures)
    kept = to_memory(train)
    assert isinstance(kept, InMemorySet)
    assert torch.equal(kept.inputs[5], train[5][0])
    assert isinstance(load("image-folder", path=pictures, in_memory=True), InMemorySet)


def test_grey_paletted_and_transparent_pictures_become_colour(tmp_path):
    write_pictures(tmp_path)
    place = tmp_path / "train" / "blue"
    Image.new("L", (8, 8), 77).save(place / "0.png")
    Image.new("RGBA", (8, 8), (1, 2, 3, 128)).save(place / "1.png")
    Image.new("P", (8, 8), 0).save(place / "2.png")
    Image.new("L", (8, 8), 200).save(place / "3.JPEG")
    train = ImageFolder(tmp_path)
    assert len(train) == 9
    assert train[0][0][:, 0, 0].tolist() == [77] * 3
    assert train[1][0][:, 0, 0].tolist() == [1, 2, 3]
    assert all(train[index][0].shape == (3, 8, 8) for index in range(9))


def test_sizes_must_agree_unless_they_are_made_to(tmp_path):
    write_pictures(tmp_path)
    wide = picture((0, 255, 0), (40, 20))
    wide.paste((255, 255, 255), (10, 0, 30, 20))
    wide.save(tmp_path / "train" / "red" / "0.png")
    with pytest.raises(ValueError, match=r"train/red/0.png in .* has 20 x 40 pixels.*8 x 8. Pass size="):
        ImageFolder(tmp_path)[4]
    train = ImageFolder(tmp_path, size=10)
    assert train.image_shape == (3, 10, 10)
    assert train[0][0].shape == (3, 10, 10)
    # The middle, which is white, is what is kept.
    assert (train[4][0][:, :, 1:-1] == 255).all()


def test_validation_can_be_held_out_where_there_is_no_folder(tmp_path):
    write_pictures(tmp_path, per_class=6)
    with pytest.raises(ValueError, match=r"has a folder 'val'\. Leave it at 0"):
        ImageFolder(tmp_path, "train", val_fraction=0.5)
    (tmp_path / "val").rename(tmp_path / "other")
    with pytest.raises(MissingDataError, match=r"'train' and 'val', but has \['other', 'train'\].*val_fraction=0.1"):
        ImageFolder(tmp_path, "val")
    parts = [ImageFolder(tmp_path, split, val_fraction=1 / 3) for split in ("train", "val")]
    assert [torch.bincount(part.labels).tolist() for part in parts] == [[4, 4], [2, 2]]


def test_class_folders_alone_are_the_training_set(tmp_path):
    write_pictures(tmp_path, per_class=6)
    archive = zip_folder(tmp_path / "train", tmp_path / "flat.zip", prefix="flat/")
    for flat in (tmp_path / "train", archive):
        assert ImageFolder(flat).classes == ("blue", "red")
        parts = [ImageFolder(flat, split, val_fraction=1 / 3) for split in ("train", "val")]
        assert [torch.bincount(part.labels).tolist() for part in parts] == [[4, 4], [2, 2]]
        assert parts[1][3][0][:, 0, 0].tolist() == [255, 0, 0]
        with pytest.raises(MissingDataError, match=r"but has \['blue', 'red'\].*val_fraction=0.1"):
            ImageFolder(flat, "val")
        with pytest.raises(MissingDataError, match=r"folders 'train' and 'test'"):
            ImageFolder(flat, "test", val_fraction=0.1)


def test_per_class_keeps_the_first_of_each(pictures):
    assert ImageFolder(pictures, per_class=2).labels.tolist() == [0, 0, 1, 1]
    with pytest.raises(ValueError, match="`per_class`"):
        ImageFolder(pictures, per_class=0)


def test_names_of_classes_come_from_a_file(tmp_path):
    write_pictures(tmp_path)
    (tmp_path / "classes.txt").write_text("red\tThe colour of fire\nunused\tNothing\n", encoding="utf-8")
    assert ImageFolder(tmp_path).classes == ("blue", "The colour of fire")


def test_files_of_no_interest_are_passed_over(tmp_path):
    write_pictures(tmp_path / "pets")
    (tmp_path / "pets" / "train" / "red" / "notes.txt").write_text("no picture")
    (tmp_path / "pets" / "train" / "red" / ".hidden.png").write_bytes(b"no picture")
    (tmp_path / "pets" / "train" / "loose.png").write_bytes(b"no picture")
    archive = zip_folder(tmp_path / "pets", tmp_path / "pets.zip", prefix="pets/")
    with zipfile.ZipFile(archive, "a") as out:
        out.writestr("__MACOSX/pets/train/red/._0.png", b"no picture")
    assert len(ImageFolder(tmp_path / "pets")) == len(ImageFolder(archive)) == 8


@pytest.mark.parametrize("content", [b"", b"no picture", b"\x89PNG\r\n\x1a\n"])
def test_a_damaged_picture_is_named(tmp_path, content):
    write_pictures(tmp_path)
    (tmp_path / "train" / "red" / "2.png").write_bytes(content)
    with pytest.raises(ValueError, match=r"train/red/2.png in .* cannot be read as an image"):
        ImageFolder(tmp_path)[6]


def test_a_picture_that_is_cut_short_is_named(tmp_path):
    write_pictures(tmp_path)
    file = tmp_path / "train" / "red" / "2.jpg"
    Image.effect_noise((64, 64), 50).save(file)
    file.write_bytes(file.read_bytes()[:-500])
    with pytest.raises(ValueError, match=r"train/red/2.jpg in .* truncated"):
        ImageFolder(tmp_path)[6]


def test_a_picture_of_very_many_pixels_is_refused(tmp_path):
    write_pictures(tmp_path)
    Image.new("1", (10_000, 10_000)).save(tmp_path / "train" / "red" / "2.png")
    with pytest.raises(ValueError, match="10000 x 10000 pixels, more than"):
        ImageFolder(tmp_path)[6]


def test_a_damaged_member_of_an_archive_is_named(tmp_path):
    write_pictures(tmp_path / "pets")
    archive = zip_folder(tmp_path / "pets", tmp_path / "pets.zip")
    with zipfile.ZipFile(archive) as source:
        place = source.getinfo("train/red/2.png").header_offset
    content = bytearray(archive.read_bytes())
    content[place + 60] ^= 0xFF
    archive.write_bytes(content)
    with pytest.raises(ValueError, match=r"train/red/2.png in .*pets.zip cannot be read"):
        ImageFolder(archive)[6]


@pytest.mark.parametrize("packing", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damage_of_every_packing_is_named(tmp_path, packing):
    name = "train/red/0.bmp"
    with zipfile.ZipFile(tmp_path / "pets.zip", "w", packing) as out:
        out.writestr(name, b"BM" + bytes(range(192)))
    content = bytearray((tmp_path / "pets.zip").read_bytes())
    content[30 + len(name) : 60 + len(name)] = b"\xff" * 30
    (tmp_path / "pets.zip").write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name} in .*pets.zip cannot be read: .* Delete pets.zip and get it again"):
        ImageFolder(tmp_path / "pets.zip")


def test_an_archive_whose_members_leave_it_is_refused(tmp_path):
    write_pictures(tmp_path / "pets")
    archive = zip_folder(tmp_path / "pets", tmp_path / "pets.zip")
    with zipfile.ZipFile(archive, "a") as out:
        out.writestr("train/../../evil.png", b"x")
    with pytest.raises(UnsafeArchiveError, match=r"train/../../evil.png"):
        ImageFolder(archive)


def test_classes_that_are_not_trained_on_are_refused(tmp_path):
    write_pictures(tmp_path)
    (tmp_path / "val" / "red").rename(tmp_path / "val" / "green")
    with pytest.raises(ValueError, match=r"classes \['green'\].* not in 'train'"):
        ImageFolder(tmp_path, "val")


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(MissingDataError, match=r"nothing at .*pets.*train/<class>"):
        load("image-folder", root=tmp_path, path="pets")
    (tmp_path / "train").mkdir()
    with pytest.raises(MissingDataError, match=r"no images .*\.jpg"):
        ImageFolder(tmp_path)
    (tmp_path / "file").write_text("text")
    with pytest.raises(ValueError, match="must be a folder or a zip archive"):
        ImageFolder(tmp_path / "file")
    with pytest.raises(ValueError, match="`split` of"):
        ImageFolder(tmp_path, "training")
    with pytest.raises(ValueError, match="`size`"):
        ImageFolder(tmp_path, size=0)


def test_a_member_or_a_file_that_is_too_large_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "pets.zip", "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("train/red/0.png", bytes(20 * MIB))
    with (
        little_memory(),
        pytest.raises(ValueError, match=r"train/red/0.png in .*pets.zip takes 20,971,520 bytes, more than"),
    ):
        ImageFolder(tmp_path / "pets.zip")
    (tmp_path / "pets" / "train" / "red").mkdir(parents=True)
    with (tmp_path / "pets" / "train" / "red" / "0.png").open("wb") as out:
        out.truncate(1 << 40)
    with (
        little_memory(),
        pytest.raises(ValueError, match=r"0.png takes 1,099,511,627,776 bytes, more than `max_bytes`"),
    ):
        ImageFolder(tmp_path / "pets")


def test_pictures_of_every_format_that_is_read_are_found(tmp_path):
    for suffix in ("png", "jpg", "jpeg", "bmp", "gif", "webp", "tif", "tiff"):
        (tmp_path / "train" / suffix).mkdir(parents=True)
        picture((200, 0, 0)).save(tmp_path / "train" / suffix / f"a.{suffix}")
    # A format that is not read.
    picture((200, 0, 0)).save(tmp_path / "train" / "png" / "b.ppm")
    found = ImageFolder(tmp_path)
    assert len(found) == 8
    assert all(abs(int(image[0].float().mean()) - 200) < 5 for image, _ in found)
