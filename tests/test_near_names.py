from pathlib import Path

import topomask
from topomask.near_names import did_you_mean, nearest


def test_the_nearest_name_is_found_where_one_is_near():
    assert nearest("walks", ["visit", "walk"]) == "walk"
    assert nearest("walks", ["visit", "walk"], cutoff=0.95) is None
    assert nearest("xyz", ["visit", "walk"]) is None
    assert nearest("", []) is None


def test_the_question_writes_names_as_it_is_told():
    assert did_you_mean("walks", {"walk": 1}) == " Did you mean 'walk'?"
    assert did_you_mean("walks", ["walk"], quote=str) == " Did you mean walk?"
    assert did_you_mean("xyz", ["walk"]) == ""


def test_names_are_compared_in_one_place():
    package = Path(topomask.__file__).parent
    assert [path.name for path in package.rglob("*.py") if "difflib" in path.read_text()] == ["near_names.py"]
