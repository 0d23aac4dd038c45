"""Options of ``topomask bench`` that cannot be obeyed."""

import sys
import types

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


def test_a_mistake_in_a_name_is_one_line(monkeypatch):
    def run(names, quick):
        raise ValueError(f"There is no benchmark {names[0]!r}.")

    monkeypatch.setitem(sys.modules, "benchmarks.__main__", types.SimpleNamespace(run=run))
    with pytest.raises(SystemExit, match="There is no benchmark 'pionts'"):
        main(["bench", "pionts"])
