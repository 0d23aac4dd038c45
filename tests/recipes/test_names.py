import pytest

from topomask.recipes.names import look_up


def test_what_is_there_is_found():
    assert look_up({"walk": 1, "visit": 2}, "mask", "visit") == 2


def test_what_is_not_there_gets_the_nearest_or_the_list():
    with pytest.raises(ValueError, match=r"^There is no mask 'walks'. Did you mean walk\? There are: walk, visit.$"):
        look_up({"walk": 1, "visit": 2}, "mask", "walks")
    with pytest.raises(ValueError, match=r"^There is no mask 'xyz'. There are: walk, visit.$"):
        look_up({"walk": 1, "visit": 2}, "mask", "xyz")
