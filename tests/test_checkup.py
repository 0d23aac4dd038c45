import pytest

import topomask as tm
from topomask import checkup
from topomask.support.imports import Extra


def findings():
    return {name: (finding, good) for name, finding, good in checkup.examine()}


def test_all_that_matters_is_looked_at(tmp_path, monkeypatch):
    monkeypatch.setenv("TOPOMASK_DATA", str(tmp_path))
    found = findings()
    assert {"topomask", "Python", "torch", "numba", "matplotlib", "av", "kernels on the CPU"} <= found.keys()
    assert found["data root"] == (str(tmp_path), True)
    assert all(good for _, good in found.values()), found


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("TOPOMASK_DATA", str(tmp_path / "gone"))
    monkeypatch.setattr(checkup, "EXTRAS", {"no_such": Extra("No Such", "no-such-package", "plot")})
    monkeypatch.setattr(checkup, "_PACKAGES", ("no-such-core",))
    found = findings()
    assert found["no-such-package"] == ("not installed (pip install 'topomask[plot]')", True)
    assert found["no-such-core"] == ("not installed", False)
    assert "not there yet" in found["data root"][0]


def test_the_backend_is_told(monkeypatch):
    monkeypatch.setenv("TOPOMASK_BACKEND", "reference")
    assert "pure torch" in findings()["kernels on the CPU"][0]


def test_the_test_of_walks_finds_an_error(monkeypatch):
    right = tm.WalkMask.to_dense
    assert checkup._test_walks() < 1e-4
    monkeypatch.setattr(tm.WalkMask, "to_dense", lambda self: 1.01 * right(self))
    assert checkup._test_walks() > 1e-4


@pytest.mark.parametrize("test", [checkup._test_attention, checkup._test_gradients])
def test_the_tests_of_attention_find_an_error(monkeypatch, test):
    right = tm.masked_attention

    def wrong(*inputs, strategy):
        return right(*inputs, strategy=strategy) * (1.01 if strategy == "pairs" else 1.0)

    assert test() < 1e-4
    monkeypatch.setattr(tm, "masked_attention", wrong)
    assert test() > 1e-4
