import numpy as np
import pytest

from helpers.hostile_files import MIB, header, little_memory, npy, write_npz
from topomask.data.npz import read_npz

ARRAYS = {
    "numbers": np.arange(12).reshape(3, 4),
    "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "foreign": np.arange(3, dtype=">i4"),
    "text": np.array(["a", "bc"]),
    "format": np.array(b"csr"),
    "one": np.array(5),
    "none": np.zeros((0, 3)),
    "flags": np.array([True, False]),
    "complex": np.ones(2) * 1j,
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_is_what_numpy_saved(tmp_path, save):
    save(tmp_path / "a.npz", **ARRAYS)
    found = read_npz(tmp_path / "a.npz")
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].shape == array.shape
        assert found[name].dtype.isnative
        assert found[name].flags.writeable


HEADERS = {
    "rows": (header("(1000000000000, 2)"), b"", "says int64 of shape"),
    "columns": (header("(2, 1000000000000)"), bytes(100), "but it holds 100 bytes"),
    "digits": (header(f"({'9' * 4000},)"), b"", "but it holds 0 bytes"),
    "negative": (header("(-1, 2)"), b"", "damaged"),
    "two negative": (header("(-1, -2)"), bytes(16), "damaged"),
    "text": (header("('a', 2)"), b"", "shape is not valid"),
    "short": (header("(2, 2)"), bytes(31), "holds 31 bytes"),
    "long": (header("(2, 2)"), bytes(33), "holds 33 bytes"),
    "letters": (header("(2,)", "'<U500000000'"), b"", "holds 0 bytes"),
    "no size": (header("(1000000000000000,)", "'|S0'"), b"", "must hold numbers or text"),
    "objects": (header("(1,)", "'|O'"), b"\x80\x04N.", "holds Python objects, which are never unpickled"),
    "fields": (header("(1,)", "[('a', '<i8')]"), bytes(8), "must hold numbers or text"),
    "fields with objects": (header("(1,)", "[('a', '|O')]"), bytes(8), "never unpickled"),
    "dates": (header("(1,)", "'<M8[s]'"), bytes(8), "must hold numbers or text"),
    "bad type": (header("(1,)", "5"), b"", "cannot be read"),
    "bad field": (header("(1,)", "[('a',)]"), b"", "cannot be read"),
    "nested": ("(" * 9000, b"", "cannot be read"),
    "sum": ("1" + "+1" * 4000, b"", "cannot be read"),
    "empty": ("", b"", "cannot be read"),
    "none": ("None", b"", "not a dictionary"),
    "keys": ("{}", b"", "correct keys"),
    "nul": ("\0" * 50, b"", "cannot be read"),
    "code": ("__import__('os').system('true')", b"", "cannot be read"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_headers_that_lie_are_refused_before_anything_is_allocated(tmp_path, case):
    head, body, message = HEADERS[case]
    write_npz(tmp_path / "a.npz", x=npy(head, body))
    with little_memory(), pytest.raises(ValueError, match=rf"^x\.npy .*{message}") as found:
        read_npz(tmp_path / "a.npz")
    assert len(str(found.value)) < 300
    assert "\n" not in str(found.value)


def test_headers_without_end_are_not_read(tmp_path):
    write_npz(tmp_path / "lies.npz", x=npy("{}", version=2, length=0xFFFFFFFF))
    write_npz(tmp_path / "long.npz", x=npy(" " * 10 * MIB, version=2))
    for name in ("lies.npz", "long.npz"):
        with little_memory(4 * MIB), pytest.raises(ValueError, match=r"x\.npy has a header .* more than 10,000"):
            read_npz(tmp_path / name)
    for version in (3, 9):
        write_npz(tmp_path / "new.npz", x=npy("{}", version=version))
        with pytest.raises(ValueError, match=rf"version \({version}, 0\) of the format is not supported"):
            read_npz(tmp_path / "new.npz")


def test_a_small_file_that_becomes_large_is_refused_unless_it_is_trusted(tmp_path, monkeypatch):
    file = write_npz(tmp_path / "a.npz", x=np.zeros(4 * MIB))
    assert file.stat().st_size < MIB
    message = r"it takes 33,554,560 bytes, more than `max_bytes`=16,777,216. .*max_bytes=.*TOPOMASK_MAX_BYTES"
    with little_memory(), pytest.raises(ValueError, match=message):
        read_npz(file)
    assert read_npz(file, max_bytes=40 * MIB)["x"].shape == (4 * MIB,)
    monkeypatch.setenv("TOPOMASK_MAX_BYTES", str(40 * MIB))
    assert read_npz(file)["x"].shape == (4 * MIB,)


def test_what_is_no_archive_is_named(tmp_path):
    np.save(tmp_path / "a.npy", np.ones(3))
    (tmp_path / "text.npz").write_text("no archive")
    (tmp_path / "empty.npz").write_bytes(b"")
    with pytest.raises(ValueError, match="a single array, not an archive of arrays"):
        read_npz(tmp_path / "a.npy")
    for name in ("text.npz", "empty.npz"):
        with pytest.raises(ValueError, match=r"it is not an \.npz archive, or it is damaged"):
            read_npz(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"gone\.npz"):
        read_npz(tmp_path / "gone.npz")
    with pytest.raises(IsADirectoryError):
        read_npz(tmp_path)


def test_every_cut_and_flipped_bit_gives_one_kind_of_error(tmp_path):
    numbers = np.random.default_rng(0).integers(0, 50, (2, 40))
    content = write_npz(tmp_path / "a.npz", x=numbers).read_bytes()
    rng = np.random.default_rng(1)
    changed = [content[:size] for size in rng.integers(0, len(content), 60)]
    for place in rng.integers(0, len(content), 150):
        flipped = bytearray(content)
        flipped[place] ^= 1 << int(rng.integers(8))
        changed.append(bytes(flipped))
    errors = []
    for damaged in changed:
        (tmp_path / "b.npz").write_bytes(damaged)
        try:
            found = read_npz(tmp_path / "b.npz")
        except ValueError as error:
            errors.append(str(error))
        else:
            # Dates and the like may change; numbers may not.
            np.testing.assert_array_equal(next(iter(found.values()), numbers), numbers)
    assert len(errors) > 100
    assert not any("\n" in error for error in errors)


def test_small_integers_are_counted_as_what_they_become(tmp_path):
    """Fifteen kilobytes that would take a gigabyte as nodes."""
    path = tmp_path / "edges.npz"
    np.savez_compressed(path, edges=np.zeros((2, 8_000_000), np.uint8))
    assert path.stat().st_size < 1 << 15
    with pytest.raises(ValueError, match=r"takes 128,000,000 bytes, more than `max_bytes`=16,777,216"):
        read_npz(path)
    assert read_npz(path, max_bytes=1 << 28)["edges"].shape == (2, 8_000_000)
