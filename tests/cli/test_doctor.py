import re
from pathlib import Path

import pytest

import topomask as tm
from topomask import checkup, warm_up
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


def test_warm_up_shows_its_calls_and_where_the_cache_is(monkeypatch, capsys):
    calls = [(name, lambda: tm.random_walks(tm.path_graph(4))) for name in ("one", "two")]
    monkeypatch.setattr(warm_up, "usual_calls", lambda: calls)
    main(["doctor", "--warm-up"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith(("1/2", "2/2"))] == ["1/2  one", "2/2  two"]
    (found,) = [line for line in lines if line.startswith("warm-up ")]
    assert re.search(r" \d+ kernels compiled, \d+ from the cache, \d+\.\d s$", found)
    (cache,) = [line for line in lines if line.startswith("kernel cache ")]
    assert Path(cache.removeprefix("kernel cache").strip()).is_dir()


def test_a_warm_up_that_fails_is_told_and_the_self_tests_still_run(monkeypatch, capsys):
    monkeypatch.setattr(warm_up, "usual_calls", lambda: [("broken", _broken)])
    with pytest.raises(SystemExit) as stop:
        main(["doctor", "--warm-up"])
    assert stop.value.code == 1
    out = capsys.readouterr().out
    assert "FAILED: RuntimeError: the kernel is gone" in out
    assert out.count(" ok, error ") == 3
