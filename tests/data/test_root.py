from pathlib import Path

from topomask.data.root import MissingDataError, data_root, find_path, missing


def test_the_argument_wins_over_the_variable_and_the_variable_over_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TOPOMASK_DATA", str(tmp_path / "variable"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_root(tmp_path / "argument") == tmp_path / "argument"
    assert data_root() == tmp_path / "variable"
    monkeypatch.setenv("TOPOMASK_DATA", "")
    assert data_root() == tmp_path / "cache" / "topomask" / "data"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_root() == Path("~/.cache/topomask/data").expanduser()


def test_a_tilde_means_the_home_folder(monkeypatch):
    monkeypatch.setenv("TOPOMASK_DATA", "~/sets")
    assert data_root() == Path.home() / "sets" == data_root("~/sets")


def test_the_error_names_folder_files_and_the_way_out(tmp_path):
    error = missing("things", tmp_path, ["a.gz", "b.gz"], "Ask for it.")
    assert isinstance(error, FileNotFoundError)
    assert isinstance(error, MissingDataError)
    for part in ("things", str(tmp_path), "a.gz, b.gz", "Ask for it.", "TOPOMASK_DATA", "`root`"):
        assert part in str(error)


def test_the_error_speaks_of_python_and_of_the_command_line(tmp_path):
    error = str(missing("things", tmp_path, ["a.gz"], "Ask for it."))
    assert "`root` (on the command line: --data.root DIR)" in error
    assert "download" not in error
    error = str(missing("things", tmp_path, ["a.gz"], "Ask for it.", download=True))
    for part in (
        "download=True (on the command line: --data.download True)",
        "$TOPOMASK_DATA",
        "`root` (--data.root DIR)",
    ):
        assert part in error


def test_paths_are_found_as_they_are_or_below_the_root(tmp_path, monkeypatch):
    (tmp_path / "root" / "pets").mkdir(parents=True)
    (tmp_path / "here" / "pets").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    assert find_path("pets", tmp_path / "root") == Path("pets")
    monkeypatch.chdir(tmp_path)
    assert find_path("pets", tmp_path / "root") == tmp_path / "root" / "pets"
