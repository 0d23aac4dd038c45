import errno
import os
import time

import pytest

from topomask.support.files import parse_json, remove_leftovers, temporary_beside, write_atomically


def test_two_writers_of_one_process_have_names_of_their_own(tmp_path):
    first, second = (temporary_beside(tmp_path / "file.bin") for _ in range(2))
    assert first != second
    assert first.parent == tmp_path
    assert first.name.startswith(".file.bin.")


def test_a_failed_write_leaves_what_was_there(tmp_path):
    (tmp_path / "file").write_text("old")

    def fail(path):
        path.write_text("half")
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        write_atomically(tmp_path / "file", fail)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "old")]


def test_a_full_disk_is_said_in_words(tmp_path):
    def fail(path):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with pytest.raises(
        OSError, match=r"file could not be written: No space left on device\. Any previous content is intact\. Free"
    ):
        write_atomically(tmp_path / "file", fail)


def test_json_is_not_deeper_than_functions_can_follow():
    assert parse_json("[" * 32 + "]" * 32) is not None
    assert parse_json(b'{"a": [1, {"b": null}]}') == {"a": [1, {"b": None}]}
    for depth in (33, 500, 990, 100_000):
        for text in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
            with pytest.raises(ValueError, match="it is nested more than 32 levels deep"):
                parse_json(text)


def make_old(path):
    two_days_ago = time.time() - 2 * 86_400
    os.utime(path, (two_days_ago, two_days_ago))


def test_leftovers_are_removed_once_they_are_old(tmp_path):
    young, old, folder = (temporary_beside(tmp_path / name) for name in ("a.zip", "b.zip", "c"))
    former = tmp_path / ".d.zip.123.part"
    not_ours = [tmp_path / name for name in (".hidden.tmp", "e.123.part", "f.zip")]
    for path in (young, old, former, *not_ours):
        path.write_text("x")
    folder.mkdir()
    (folder / "inside").write_text("x")
    for path in (old, folder, former, *not_ours):
        make_old(path)
    remove_leftovers(tmp_path)
    assert set(tmp_path.iterdir()) == {young, *not_ours}
