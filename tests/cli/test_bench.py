"""Options of ``topomask bench`` that cannot be obeyed."""

import pytest

from topomask.cli import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--list", "points"], "Leave out names"),
        (["--list", "--quick"], "Leave out"),
        (["--data", "nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_obeyed_is_refused(arguments, message):
    with pytest.raises(SystemExit, match=message):
        main(["bench", *arguments])
