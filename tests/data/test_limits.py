import io
import os

import pytest

from helpers.hostile_files import MIB, little_memory
from topomask.data.limits import LIMITS, check_bytes, limit_of, read_bounded, read_text, read_up_to, unpacked_limit
from topomask.data.npz import read_npz


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in LIMITS:
        monkeypatch.delenv(f"TOPOMASK_{name.upper()}", raising=False)


@pytest.mark.parametrize("name", LIMITS)
def test_an_argument_counts_before_the_environment_and_that_before_the_default(name, monkeypatch):
    assert limit_of(name) == LIMITS[name]
    monkeypatch.setenv(f"TOPOMASK_{name.upper()}", "1000")
    assert (limit_of(name), limit_of(name, 7)) == (1000, 7)


@pytest.mark.parametrize("text", ["0", "-5", "1e9", "4 GB", "1.5", "no"])
def test_a_limit_that_is_no_number_is_refused(text, monkeypatch):
    monkeypatch.setenv("TOPOMASK_MAX_BYTES", text)
    with pytest.raises(ValueError, match=r"TOPOMASK_MAX_BYTES must be a positive integer, but is "):
        limit_of("max_bytes")
    with pytest.raises(ValueError, match=r"`max_bytes` must be a positive integer, but is 0"):
        limit_of("max_bytes", 0)


def test_what_is_packed_may_grow_fifty_times_within_bounds(tmp_path, monkeypatch):
    sizes = [0, MIB, 5 * MIB, 100 * MIB]
    assert [unpacked_limit(size) for size in sizes] == [16 * MIB, 50 * MIB, 250 * MIB, 512 * MIB]
    assert unpacked_limit(100 * MIB, most=1 << 32) == 1 << 32
    (tmp_path / "file").write_bytes(bytes(MIB))
    assert unpacked_limit(tmp_path / "file") == 50 * MIB
    assert unpacked_limit(tmp_path / "file", 3) == 3
    monkeypatch.setenv("TOPOMASK_MAX_BYTES", "5")
    assert unpacked_limit(tmp_path / "file", most=1 << 32) == 5


def test_an_error_names_the_limit_and_how_to_raise_it():
    check_bytes("it", 10, 10)
    with pytest.raises(ValueError) as found:
        check_bytes("cat.npz", 2_000, 1_999)
    assert str(found.value) == (
        "cat.npz takes 2,000 bytes, more than `max_bytes`=1,999. If you trust it, raise the limit: max_bytes=... in "
        "Python, or the environment variable TOPOMASK_MAX_BYTES."
    )


def test_files_are_read_up_to_a_limit(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_bytes(bytes(100))
    assert read_bounded(file, given=100) == bytes(100)
    with pytest.raises(ValueError, match=r"file takes 100 bytes, more than `max_bytes`=99"):
        read_bounded(file, given=99)
    monkeypatch.setenv("TOPOMASK_MAX_TEXT_BYTES", "50")
    with pytest.raises(ValueError, match=r"file takes 100 bytes, more than `max_text_bytes`=50"):
        read_text(file)
    # Without end.
    with little_memory(), pytest.raises(ValueError, match=r"/dev/zero must be a plain file"):
        read_bounded(type(file)("/dev/zero"))


def test_a_file_that_is_huge_and_empty_takes_no_memory(tmp_path):
    with (tmp_path / "holes").open("wb") as out:
        out.truncate(1 << 40)
    with little_memory(), pytest.raises(ValueError, match=r"takes 1,099,511,627,776 bytes"):
        read_bounded(tmp_path / "holes")


def test_text_in_another_encoding_is_refused(tmp_path):
    (tmp_path / "text").write_bytes("\ufeffé".encode())
    assert read_text(tmp_path / "text") == "é"
    (tmp_path / "text").write_bytes("é".encode("latin-1"))
    with pytest.raises(ValueError, match=r"not text in UTF-8 \(unexpected end of data at byte 0\)"):
        read_text(tmp_path / "text")


@pytest.mark.parametrize("size", [0, 1, MIB, MIB + 1, 3 * MIB])
def test_as_much_is_read_as_there_is(size):
    content = bytes(range(256)) * (size // 256 + 1)
    assert bytes(read_up_to(io.BytesIO(content), size)) == content[:size]
    assert bytes(read_up_to(io.BytesIO(content[:size]), size + 10)) == content[:size]


def test_a_pipe_that_nobody_writes_to_is_not_opened(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for read in (read_bounded, read_text, read_npz):
        with pytest.raises(ValueError, match="must be a plain file, but is a device or a pipe"):
            read(pipe)
