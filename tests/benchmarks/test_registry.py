import sys
from types import SimpleNamespace

import pytest

from benchmarks import __main__ as registry


def test_one_that_fails_does_not_stop_the_others(monkeypatch, capsys):
    calls = []

    def broken():
        raise RuntimeError("no luck")

    monkeypatch.setattr(registry, "ALL", ("broken", "fine"))
    monkeypatch.setitem(sys.modules, "benchmarks.broken", SimpleNamespace(main=broken))
    monkeypatch.setitem(sys.modules, "benchmarks.fine", SimpleNamespace(main=lambda quick=False: calls.append(quick)))
    with pytest.raises(SystemExit, match=r"Failed: broken\."):
        registry.run([], quick=True)
    assert calls == [True]
    printed = capsys.readouterr()
    assert "no luck" in printed.err
    assert "fine (2 of 2)" in printed.out


def test_those_without_a_small_version_run_as_they_are(monkeypatch):
    calls = []
    monkeypatch.setattr(registry, "ALL", ("plain",))
    monkeypatch.setitem(sys.modules, "benchmarks.plain", SimpleNamespace(main=lambda: calls.append("ran")))
    registry.run(["plain"], quick=True)
    assert calls == ["ran"]
