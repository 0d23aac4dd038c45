import pytest

import topomask as tm
from topomask import checkup
from topomask.cli import main


def test_a_healthy_installation_passes(capsys):
    main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["topomask", tm.__version__] for line in lines)
    tests = [line for line in lines if line.startswith("self-test")]
    assert len(tests) == 3
    assert all(" ok, error " in line for line in tests)


def _broken():
    raise RuntimeError("the kernel is gone")


@pytest.mark.parametrize(
    ("broken", "message"),
    [(lambda: 0.5, "FAILED, error 5.0e-01"), (_broken, "FAILED: RuntimeError: the kernel is gone")],
)
def test_a_self_test_that_fails_is_told_and_the_others_still_run(monkeypatch, capsys, broken, message):
    monkeypatch.setattr(checkup, "_test_attention", broken)
    with pytest.raises(SystemExit) as stop:
        main(["doctor"])
    assert stop.value.code == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("self-test")]
    assert message in lines[1]
    assert " ok, error " in lines[0]
    assert " ok, error " in lines[2]
