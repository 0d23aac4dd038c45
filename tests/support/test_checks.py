from pathlib import Path

import pytest

import topomask
from topomask.support.checks import check_options, did_you_mean, look_up, nearest


def test_the_nearest_name_is_found_where_one_is_near():
    assert nearest("walks", ["visit", "walk"]) == "walk"
    assert nearest("walks", ["visit", "walk"], cutoff=0.95) is None
    assert nearest("xyz", ["visit", "walk"]) is None
    assert nearest("", []) is None


def test_the_question_writes_names_as_it_is_told():
    assert did_you_mean("walks", {"walk": 1}) == " Did you mean 'walk'?"
    assert did_you_mean("walks", ["walk"], quote=str) == " Did you mean walk?"
    assert did_you_mean("xyz", ["walk"]) == ""


def test_options_that_there_are_not_are_refused():
    check_options("mask 'walk'", ["seed"], ["num_walks", "seed"])
    with pytest.raises(ValueError, match=r"^mask 'walk' has no option `sed`\. Did you mean `seed`\? It takes: seed\.$"):
        check_options("mask 'walk'", ["seed", "sed"], ["seed"])
    with pytest.raises(ValueError, match=r"^mask 'all' has no option `seed`\. It takes none; leave it out\.$"):
        check_options("mask 'all'", ["seed"], [])


def test_names_are_compared_in_one_place():
    package = Path(topomask.__file__).parent
    assert [path.name for path in package.rglob("*.py") if "difflib" in path.read_text()] == ["checks.py"]


def test_what_is_there_is_found():
    assert look_up({"walk": 1, "visit": 2}, "mask", "visit") == 2


def test_what_is_not_there_gets_the_nearest_or_the_list():
    with pytest.raises(ValueError, match=r"^There is no mask 'walks'. Did you mean walk\? There are: walk, visit.$"):
        look_up({"walk": 1, "visit": 2}, "mask", "walks")
    with pytest.raises(ValueError, match=r"^There is no mask 'xyz'. There are: walk, visit.$"):
        look_up({"walk": 1, "visit": 2}, "mask", "xyz")
