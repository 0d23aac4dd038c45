import json

import pytest

from experiments.reproduce.results import ResultFolder, RunResult


def result(cell="grf", seed=0, **changes):
    known = {"metrics": {"accuracy": 0.5}, "seconds": 1.5, "config": {"lr": 0.1}, "versions": {"torch": "2"}}
    return RunResult(cell, seed, **known | changes)


@pytest.fixture
def folder(tmp_path):
    return ResultFolder(tmp_path / "results" / "digits")


def test_results_come_back(folder):
    assert folder.runs() == []
    runs = [result("grf", 0), result("grf", 1), result("linear", 0)]
    for run in reversed(runs):
        folder.add(run)
    assert folder.runs() == runs
    assert sorted(path.name for path in folder.path.iterdir()) == ["grf-0.json", "grf-1.json", "linear-0.json"]


def test_a_result_is_found_by_cell_seed_and_config(folder):
    folder.add(result())
    assert folder.find("grf", 0, {"lr": 0.1}) == result()
    assert folder.find("grf", 0, {"lr": 0.2}) is None
    assert folder.find("grf", 1, {"lr": 0.1}) is None
    assert folder.find("linear", 0, {"lr": 0.1}) is None


def test_a_new_result_replaces_the_old(folder):
    folder.add(result())
    folder.add(result(metrics={"accuracy": 0.75}))
    (run,) = folder.runs()
    assert run.metrics == {"accuracy": 0.75}


@pytest.mark.parametrize("text", ["", '{"cell": "grf", "se', "[]", "3", '{"cell": "grf"}', "null"])
def test_a_file_that_is_no_result_is_named(folder, text):
    folder.add(result())
    path = folder.path / "grf-1.json"
    path.write_text(text)
    for look in (folder.runs, lambda: folder.find("grf", 1, {})):
        with pytest.raises(ValueError, match=r"grf-1\.json is no result of a run .*Move it away"):
            look()
    assert folder.find("grf", 0, {"lr": 0.1}) is not None


def test_a_kill_while_writing_leaves_the_old_result(folder, monkeypatch):
    folder.add(result())
    monkeypatch.setattr(json, "dumps", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        folder.add(result(metrics={}))
    # What a killed process left behind is no result.
    (folder.path / ".grf-1.json.tmp").write_text('{"cell": "gr')
    assert folder.runs() == [result()]
