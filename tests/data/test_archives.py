import io
import os
import random
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from helpers.hostile_files import MIB, little_memory, small_files, zeros_gz
from topomask.data import ImageFolder, UnsafeArchiveError, archives, extract
from topomask.data.archives import damage_named
from topomask.data.npz import read_npz

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
    refused(archive, tmp_path, "in conflict with another one of the same name")


def test_modes_of_the_archive_are_not_obeyed(tmp_path):
    make_zip(tmp_path / "zip", [("run", (b"x", stat.S_IFREG | stat.S_ISUID | 0o777))])
    with tarfile.open(tmp_path / "tar", "w") as out:
        info = tarfile.TarInfo("run")
        info.mode = stat.S_ISUID | 0o777
        out.addfile(info)
    for kind in ("zip", "tar"):
        mode = (extract(tmp_path / kind, tmp_path / f"{kind} out") / "run").stat().st_mode
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
    refused(archive, tmp_path, r"unknown method \(That compression method is not supported\). Delete a.zip and get it")


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


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_by_default_an_archive_grows_fifty_times_at_most(tmp_path, make, monkeypatch):
    bomb = make(tmp_path / "bomb", [("zeros", bytes(20 * MIB))])
    refused(bomb, tmp_path, r"more than `max_bytes`=16777216. If you trust it, raise the limit: .*TOPOMASK_MAX_BYTES")
    assert (extract(bomb, tmp_path / "given", max_bytes=20 * MIB) / "zeros").stat().st_size == 20 * MIB
    monkeypatch.setenv("TOPOMASK_MAX_BYTES", str(20 * MIB))
    assert (extract(bomb, tmp_path / "told") / "zeros").is_file()


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE])
@pytest.mark.parametrize("start", [b"", tarfile.TarInfo("first").tobuf()])
def test_a_name_of_many_megabytes_is_not_read(tmp_path, kind, start):
    """tarfile reads headers whole, and did so before the members were judged."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = kind, 12 * MIB
    (tmp_path / "bomb.tar.gz").write_bytes(zeros_gz(start + info.tobuf(), info.size + 10 * tarfile.BLOCKSIZE))
    with little_memory():
        refused(tmp_path / "bomb.tar.gz", tmp_path, r"a header of 12,582,912 bytes, more than 1,048,576")


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_folders_within_folders_have_an_end(tmp_path, make):
    deep = make(tmp_path / "deep", [("a/" * 30_000 + "b", b"x")])
    with little_memory():
        refused(deep, tmp_path, r"'a/a/a.*\.\.\. is nested 30,000 folders deep, more than 100")


@pytest.mark.parametrize("packing", ["gz", "bz2", "xz"])
def test_tars_of_every_packing_are_unpacked(tmp_path, packing):
    with tarfile.open(tmp_path / "a.tar", f"w:{packing}") as out:
        info = tarfile.TarInfo("a" * 150)
        info.size = 3
        out.addfile(info, io.BytesIO(b"abc"))
    assert (extract(tmp_path / "a.tar", tmp_path / "out") / ("a" * 150)).read_bytes() == b"abc"


def changed(content, rng, repair):
    """A few bytes changed, and the checksums of tar headers made right again, so that headers are believed."""
    content = bytearray(content)
    for _ in range(rng.choice([1, 2, 5])):
        content[rng.randrange(min(len(content), 2048))] = rng.choice([0, 255, *b"9-\n", rng.randrange(256)])
    for start in range(0, len(content) - 511, 512) if repair else ():
        if content[start + 257 : start + 262] == b"ustar":
            content[start + 148 : start + 156] = b" " * 8
            content[start + 148 : start + 156] = b"%06o\0 " % sum(content[start : start + 512])
    return bytes(content)


SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "999", "GNU.sparse.name": "x"}


@pytest.mark.parametrize("kind", ["zip", "gnu", "pax", "sparse"])
def test_whatever_is_changed_gives_one_kind_of_error(tmp_path, kind):
    archive = tmp_path / "a"
    if kind == "zip":
        make_zip(archive, [("a/b", b"x" * 999), ("ü", b"y")])
    else:
        form = tarfile.GNU_FORMAT if kind == "gnu" else tarfile.PAX_FORMAT
        with tarfile.open(archive, "w", format=form) as out:
            for name in ("a" * 150, "folder/ü"):
                info = tarfile.TarInfo(name)
                info.size = 1024
                info.pax_headers = SPARSE if kind == "sparse" else {}
                out.addfile(info, io.BytesIO(b"1\n0\n512\n" + bytes(1016)))
    content, rng, refusals = archive.read_bytes(), random.Random(0), 0
    for number in range(100):
        archive.write_bytes(changed(content, rng, repair=kind != "zip"))
        try:
            extract(archive, tmp_path / f"out{number}")
        except UnsafeArchiveError:
            refusals += 1
            assert not (tmp_path / f"out{number}").exists()
    assert 5 < refusals < 100
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_device_is_no_archive(tmp_path, monkeypatch):
    """Its end would be looked for without end."""

    def forbidden(*arguments):
        pytest.fail("a device is read")

    monkeypatch.setattr("zipfile._EndRecData", forbidden)
    monkeypatch.setattr("tarfile.TarFile", forbidden)
    device = Path("/dev/zero")
    with pytest.raises(UnsafeArchiveError, match="must be a plain file, but /dev/zero"):
        extract(device, tmp_path / "out")
    with pytest.raises(ValueError, match="must be a folder or a zip archive, but /dev/zero is neither"):
        ImageFolder(device)
    with pytest.raises(ValueError, match="must be a plain file"):
        read_npz(device)


def sparse_tar(path, real_size, pieces, data):
    """A tar of one sparse member: its size, the places and sizes of its pieces, and what is stored."""
    info = tarfile.TarInfo("x")
    numbers = [len(pieces), *(number for piece in pieces for number in piece)]
    table = "".join(f"{number}\n" for number in numbers).encode()
    table += bytes(-len(table) % 512)
    info.size = len(table) + data
    info.pax_headers = SPARSE | {"GNU.sparse.realsize": str(real_size)}
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT, compresslevel=1) as out:
        out.addfile(info, io.BytesIO(table + bytes(data)))
    return path


def test_sparse_members_are_unpacked_whole(tmp_path):
    archive = sparse_tar(tmp_path / "a.tar.gz", 5000, [(1000, 512), (4000, 512), (5000, 0)], 1024)
    assert (extract(archive, tmp_path / "out") / "x").read_bytes() == bytes(5000)


@pytest.mark.parametrize("pieces", [[(0, 4 * MIB)], [(1 << 40, 512)]])
def test_a_sparse_member_writes_no_more_than_its_size(tmp_path, pieces):
    """tarfile's own unpacking, with the filter for data too, writes all pieces and cuts the file afterwards."""
    archive = sparse_tar(tmp_path / "a.tar.gz", 1000, pieces, pieces[0][1])
    with small_files():
        assert (extract(archive, tmp_path / "out", max_bytes=1000) / "x").read_bytes() == bytes(1000)


def test_a_size_below_zero_is_refused(tmp_path):
    """tarfile's own unpacking writes up to 16 KiB for it."""
    info = tarfile.TarInfo("x")
    info.size = -1
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 16))
    refused(tmp_path / "a.tar", tmp_path, "damaged")


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_backslashes_separate_folders(tmp_path, make):
    archive = make(tmp_path / "archive", [("top\\sub\\a.txt", b"x"), ("top/sub/b.txt", b"y")])
    folder = extract(archive, tmp_path / "out")
    assert {path.name for path in (folder / "top" / "sub").iterdir()} == {"a.txt", "b.txt"}
