import hashlib
import http.server
import io
import os
import sys
import threading

import pytest

from topomask.data import download
from topomask.data.download import DownloadError, RemoteFile, fetch

CONTENT = b"some bytes" * 1000


@pytest.fixture
def server(tmp_path):
    """The address of a server that serves a folder."""
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "file.bin").write_bytes(CONTENT)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(folder))

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def remote(*urls, content=CONTENT, size=None):
    return RemoteFile("file.bin", urls, hashlib.sha256(content).hexdigest(), len(content) if size is None else size)


def test_a_file_arrives_and_nothing_else_is_left(server, tmp_path):
    target = fetch(remote(f"{server}/file.bin"), tmp_path / "new" / "folder")
    assert target.read_bytes() == CONTENT
    assert list(target.parent.iterdir()) == [target]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("has_rich", [True, False])
def test_a_terminal_shows_how_far_it_is(server, tmp_path, monkeypatch, has_rich):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    if not has_rich:
        monkeypatch.setattr(download, "installed", lambda _: False)
    assert fetch(remote(f"{server}/file.bin"), tmp_path).read_bytes() == CONTENT
    shown = sys.stderr.getvalue()
    assert ("file.bin" in shown and "10.0/10.0 kB" in shown) == has_rich
    assert bool(shown) == has_rich


def test_a_file_is_on_disk_before_it_has_its_name(server, tmp_path, monkeypatch):
    there = []
    monkeypatch.setattr(os, "fsync", lambda _: there.append((tmp_path / "file.bin").exists()))
    fetch(remote(f"{server}/file.bin"), tmp_path)
    assert there == [False, True]


def test_a_file_that_is_there_is_not_downloaded(tmp_path):
    (tmp_path / "file.bin").write_bytes(b"mine")
    assert fetch(remote("http://127.0.0.1:9/file.bin"), tmp_path).read_bytes() == b"mine"


def test_the_next_address_is_tried(server, tmp_path):
    assert fetch(remote(f"{server}/gone", f"{server}/file.bin"), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("file_of", "message"),
    [
        (lambda server: remote(f"{server}/file.bin", content=CONTENT[:-1] + b"!"), "SHA-256 is .* instead of"),
        (lambda server: remote(f"{server}/file.bin", size=len(CONTENT) - 1), "more than the expected 9999 bytes"),
        (lambda server: remote(f"{server}/file.bin", size=len(CONTENT) + 1), "received 10000 bytes instead of 10001"),
        (lambda server: remote(f"{server}/gone"), "404"),
        (lambda server: remote("http://127.0.0.1:9/file.bin"), "refused"),
        (lambda server: remote("file:///etc/hostname"), "the URL must start with http:// or https://"),
    ],
)
def test_what_is_wrong_leaves_nothing_behind(server, tmp_path, file_of, message):
    file = file_of(server)
    with pytest.raises(DownloadError, match=message) as caught:
        fetch(file, tmp_path / "folder")
    for part in ("offline", str(tmp_path / "folder" / "file.bin"), file.sha256, file.urls[0]):
        assert part in str(caught.value)
    assert not list((tmp_path / "folder").iterdir())


def test_a_file_that_another_process_downloaded_meanwhile_is_taken(tmp_path, monkeypatch):
    def fail_late(url, file, path):
        (tmp_path / "file.bin").write_bytes(b"theirs")
        raise OSError("the line is down")

    monkeypatch.setattr(download, "_download", fail_late)
    assert fetch(remote("http://127.0.0.1:9/file.bin"), tmp_path).read_bytes() == b"theirs"


def test_what_killed_downloads_left_is_removed(server, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    leftover, fresh = folder / ".other.bin.123.part", folder / ".other.bin.124.part"
    for path in (leftover, fresh):
        path.write_bytes(b"half")
    os.utime(leftover, (0, 0))
    target = fetch(remote(f"{server}/file.bin"), folder)
    assert set(folder.iterdir()) == {target, fresh}
