import io
import os
import random
import stat
import tarfile
import zipfile

import pytest

from topomask.data import UnsafeArchiveError, archives, extract
from topomask.data.archives import damage_named

GOOD = {"top/a.txt": b"first", "top/sub/b.txt": b"second" * 1000, "c.txt": b""}


def make_zip(path, members):
    """Members: name to content, or to a pair of content and the mode of the file."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in members:
            info = zipfile.ZipInfo(name)
            if isinstance(content, tuple):
                content, info.external_attr = content[0], content[1] << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            out.writestr(info, content)
    return path


def make_tar(path, members):
    """Members: name to content, or to a pair of type and target of the link."""
    with tarfile.open(path, "w:gz") as out:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, tuple):
                info.type, info.linkname = content
                out.addfile(info)
            else:
                info.size = len(content)
                out.addfile(info, io.BytesIO(content))
    return path


def refused(archive, tmp_path, message, **limits):
    """The archive is refused, and leaves no trace beside itself."""
    before = {path for path in tmp_path.rglob("*") if path != tmp_path / "out"}
    with pytest.raises(UnsafeArchiveError, match=message):
        extract(archive, tmp_path / "out" / "folder", **limits)
    after = {path for path in tmp_path.rglob("*") if path != tmp_path / "out"}
    assert after == before


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_plain_archives_are_unpacked(tmp_path, make):
    archive = make(tmp_path / "archive", GOOD.items())
    folder = extract(archive, tmp_path / "new" / "folder")
    assert {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.txt")} == GOOD
    assert list(folder.parent.iterdir()) == [folder]


def test_empty_folders_and_dots_are_kept_apart_from_files(tmp_path):
    zipped = make_zip(tmp_path / "a.zip", [("empty/", b""), ("./here.txt", b"x")])
    folder = extract(zipped, tmp_path / "zip")
    assert (folder / "empty").is_dir()
    assert (folder / "here.txt").read_bytes() == b"x"
    tarred = make_tar(tmp_path / "a.tar", [(".", (tarfile.DIRTYPE, "")), ("empty", (tarfile.DIRTYPE, ""))])
    assert (extract(tarred, tmp_path / "tar") / "empty").is_dir()


NAMES = ["../evil", "good/../../evil", "/etc/evil", "..\\evil", "C:\\evil", "C:evil", "good/..", "\\\\host\\evil"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_paths_that_leave_the_folder_are_refused_by_name(tmp_path, make, name):
    archive = make(tmp_path / "archive", [*GOOD.items(), (name, b"evil")])
    with pytest.raises(UnsafeArchiveError) as caught:
        extract(archive, tmp_path / "out")
    assert repr(name) in str(caught.value) or repr(name.replace("\\", "/")) in str(caught.value)
    refused(archive, tmp_path, "points outside")
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (tarfile.SYMTYPE, "/etc/passwd"),
        (tarfile.SYMTYPE, "../../outside"),
        (tarfile.LNKTYPE, "/etc/passwd"),
        (tarfile.LNKTYPE, "../outside"),
        (tarfile.SYMTYPE, "c.txt"),
        (tarfile.CHRTYPE, ""),
        (tarfile.BLKTYPE, ""),
        (tarfile.FIFOTYPE, ""),
    ],
)
def test_links_and_devices_in_tars_are_refused_by_name(tmp_path, kind, target):
    archive = make_tar(tmp_path / "archive.tar.gz", [*GOOD.items(), ("trap", (kind, target)), ("trap/file", b"x")])
    refused(archive, tmp_path, "'trap' is (a link to|a device)")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK])
def test_links_and_devices_in_zips_are_refused_by_name(tmp_path, kind):
    archive = make_zip(tmp_path / "archive.zip", [*GOOD.items(), ("trap", (b"/etc/passwd", kind | 0o777))])
    refused(archive, tmp_path, "'trap' is a link or a special file")


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_sizes_are_bounded_before_anything_is_written(tmp_path, make):
    bomb = make(tmp_path / "bomb", [("zeros", bytes(10_000_000)), ("after", b"x")])
    assert bomb.stat().st_size < 100_000
    refused(bomb, tmp_path, "'zeros' it unpacks to 10000000 bytes, more than `max_bytes`=1000", max_bytes=1000)
    refused(bomb, tmp_path, "more than `max_members`=1 ", max_members=1)


def test_a_zip_that_lies_about_a_size_is_refused(tmp_path):
    archive = make_zip(tmp_path / "liar.zip", [("zeros", bytes(100_000))])
    content = archive.read_bytes()
    # Both the local and the central header say how large the member is.
    archive.write_bytes(content.replace((100_000).to_bytes(4, "little"), (10).to_bytes(4, "little")))
    refused(archive, tmp_path, "damaged|larger than", max_bytes=1000)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("make", [make_zip, make_tar])
@pytest.mark.parametrize("names", [("a", "a"), ("a", "./a"), ("a", "."), ("a", "a/b"), ("a/b", "a")])
def test_members_in_each_others_way_are_refused(tmp_path, make, names):
    archive = make(tmp_path / "archive", [(name, b"x") for name in names])
    refused(archive, tmp_path, "in the way of another one")


def test_modes_of_the_archive_are_not_obeyed(tmp_path):
    archive = make_zip(tmp_path / "a.zip", [("run", (b"x", stat.S_IFREG | stat.S_ISUID | 0o777))])
    mode = (extract(archive, tmp_path / "out") / "run").stat().st_mode
    assert not mode & (stat.S_ISUID | stat.S_IXUSR)


@pytest.mark.parametrize("make", [make_zip, make_tar])
@pytest.mark.parametrize("kept", [0.3, 0.6, 0.9])
def test_archives_that_are_cut_short_leave_nothing(tmp_path, make, kept):
    noise = bytes(i * i * 31 % 251 for i in range(20_000))
    archive = make(tmp_path / "archive", [("a", noise), ("b", noise[::-1])])
    content = archive.read_bytes()
    archive.write_bytes(content[: int(kept * len(content))])
    refused(archive, tmp_path, "damaged|neither")


def test_damage_inside_a_member_is_noticed(tmp_path):
    archive = make_zip(tmp_path / "a.zip", [("a", bytes(range(256)) * 10)])
    content = bytearray(archive.read_bytes())
    content[60] ^= 0xFF
    archive.write_bytes(content)
    refused(archive, tmp_path, "damaged")


def test_what_is_no_archive_is_refused(tmp_path):
    (tmp_path / "text").write_text("no archive")
    refused(tmp_path / "text", tmp_path, "neither a zip nor a tar")


def test_a_folder_that_exists_is_not_touched(tmp_path):
    archive = make_zip(tmp_path / "a.zip", GOOD.items())
    (tmp_path / "mine").mkdir()
    with pytest.raises(FileExistsError, match="must be new"):
        extract(archive, tmp_path / "mine")
    assert not list((tmp_path / "mine").iterdir())


NOISE = bytes(i * i * 31 % 251 for i in range(50_000))


@pytest.mark.parametrize("packing", ["gz", "bz2", "xz"])
def test_damage_of_every_packing_of_tars_is_named(tmp_path, packing):
    archive = tmp_path / f"a.tar.{packing}"
    with tarfile.open(archive, f"w:{packing}") as out:
        for number in range(40):
            info = tarfile.TarInfo(f"{number}")
            info.size = len(NOISE)
            # Digits are packed, unlike noise, which is stored as it is.
            digits = random.Random(number).randbytes(len(NOISE) // 2).hex()
            out.addfile(info, io.BytesIO(digits.encode()))
    content = bytearray(archive.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 2000] = b"\xff" * 2000
    archive.write_bytes(content)
    refused(archive, tmp_path, rf"a.tar.{packing} cannot be read: .*damaged.* get it again")


@pytest.mark.parametrize("packing", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damage_of_every_packing_of_zips_is_named(tmp_path, packing):
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w", packing) as out:
        out.writestr("a", NOISE)
    content = bytearray(archive.read_bytes())
    content[31:60] = b"\xff" * 29
    archive.write_bytes(content)
    refused(archive, tmp_path, "a.zip cannot be read: .*damaged.* get it again")


def test_an_unknown_packing_is_named(tmp_path):
    archive = make_zip(tmp_path / "a.zip", [("a", b"x" * 100)])
    content = archive.read_bytes()
    local, central = content.index(b"PK\x03\x04"), content.index(b"PK\x01\x02")
    changed = bytearray(content)
    changed[local + 8 : local + 10] = changed[central + 10 : central + 12] = (97).to_bytes(2, "little")
    archive.write_bytes(changed)
    refused(archive, tmp_path, r"unknown way \(That compression method is not supported\). Delete a.zip and get it")


def test_errors_of_the_disk_stay_what_they_are(tmp_path):
    with pytest.raises(FileNotFoundError), damage_named(tmp_path / "a.zip"):
        (tmp_path / "a.zip").read_bytes()


def test_losing_a_race_is_no_error_and_leaves_nothing(tmp_path, monkeypatch):
    archive = make_zip(tmp_path / "a.zip", GOOD.items())

    def unpack_slowly(*arguments):
        (tmp_path / "folder" / "theirs").mkdir(parents=True)

    monkeypatch.setattr(archives, "_extract_zip", unpack_slowly)
    assert extract(archive, tmp_path / "folder") == tmp_path / "folder"
    assert set(tmp_path.iterdir()) == {archive, tmp_path / "folder"}


def test_what_killed_processes_left_is_removed(tmp_path):
    archive = make_zip(tmp_path / "a.zip", GOOD.items())
    (tmp_path / ".folder.123.part" / "top").mkdir(parents=True)
    os.utime(tmp_path / ".folder.123.part", (0, 0))
    extract(archive, tmp_path / "folder")
    assert set(tmp_path.iterdir()) == {archive, tmp_path / "folder"}
