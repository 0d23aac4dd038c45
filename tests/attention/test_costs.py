import json
import os

import pytest

from topomask.attention import costs


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("TOPOMASK_COSTS", str(tmp_path / "folder" / "costs.json"))
    monkeypatch.setattr(costs, "constants", costs.DEFAULTS)
    return tmp_path / "folder" / "costs.json"


def test_defaults_without_a_file(file):
    assert costs.path() == file
    assert costs.load() is costs.DEFAULTS


def test_saved_constants_are_used_and_written_whole(file):
    constants = {term: 2.0 * value for term, value in costs.DEFAULTS.items()}
    assert costs.save(constants) == file
    assert costs.load() == costs.constants == constants
    assert [path.name for path in file.parent.iterdir()] == ["costs.json"]


def test_saved_constants_are_on_disk_before_they_have_their_name(file, monkeypatch):
    there = []
    monkeypatch.setattr(os, "fsync", lambda _: there.append(file.exists()))
    costs.save(costs.DEFAULTS)
    assert there == [False, True]


@pytest.mark.parametrize(
    "text",
    ["", "[1]", "{}", json.dumps(costs.DEFAULTS | {"dense: call": -1.0}), json.dumps(costs.DEFAULTS | {"other": 1.0})],
)
def test_files_that_cannot_be_used_are_named(file, text):
    file.parent.mkdir()
    file.write_text(text)
    with pytest.warns(UserWarning, match=r"costs\.json.*calibrate"):
        assert costs.load() is costs.DEFAULTS


def test_constants_must_be_complete():
    with pytest.raises(ValueError, match="'dense: call'"):
        costs.save(costs.DEFAULTS | {"dense: call": float("nan")})


def test_every_term_has_a_constant():
    import topomask as tm
    from helpers.problems import problem
    from topomask.attention.plan import count_work

    found = set()
    for num_walks, symmetric in ((2, True), (20, True), (20, False)):
        mask = tm.WalkMask(tm.grid_graph(9, 9), num_walks=num_walks, symmetric=symmetric, seed=0)
        for work in count_work(problem(mask, 8, 8)).values():
            found |= set(work.terms)
    path = tm.WalkMask(tm.path_graph(30), num_walks=1, max_length=2, seed=0)
    for work in count_work(problem(path, 8, 8)).values():
        found |= set(work.terms)
    assert found == set(costs.DEFAULTS)
