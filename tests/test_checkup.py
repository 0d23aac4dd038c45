import os
import subprocess
import sys
from pathlib import Path

import pytest

import topomask as tm
from topomask import checkup, warm_up
from topomask.masks.registry import ON_GRAPHS
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
    assert "does not exist yet" in found["data root"][0]


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


def test_warm_up_compiles_once_for_all_processes(tmp_path):
    """On a small subset: a second process finds everything in the cache."""
    code = """
from topomask import warm_up
found = warm_up.warm_up([call for call in warm_up.usual_calls() if call[0] == "random walks"])
print(found.num_compiled, found.num_cached, found.cache)
"""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(tm.__file__).parents[1])}
    done = [
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    (first, found), (_, again) = (each.stdout.splitlines() for each in done)
    assert first == "1/1  random walks"
    assert found.startswith("1 0 ")
    assert again.startswith("0 1 ")
    assert Path(again.split()[-1]).is_relative_to(tmp_path)


def test_warm_up_covers_every_mask_on_a_graph():
    names = [name for name, _ in warm_up.usual_calls()]
    assert len(set(names)) == len(names)
    assert {f"{name} mask" for name in ON_GRAPHS} <= set(names)


def test_a_warm_up_call_runs_forward_and_backward(monkeypatch):
    strategies = []
    for name in ("masked_attention", "masked_softmax_attention"):
        attend = getattr(tm, name)

        def watched(*inputs, attend=attend, name=name, **options):
            out = attend(*inputs, **options)
            strategies.append((name, options["strategy"], out.requires_grad))
            return out

        monkeypatch.setattr(tm, name, watched)
    warm_up._attend("neighbor", {})
    expected = {("masked_attention", way) for way in ("auto", "pairs", "product", "dense")}
    expected |= {("masked_softmax_attention", way) for way in ("auto", "pairs", "dense")}
    assert set(strategies) == {(*each, learns) for each in expected for learns in (True, False)}


def test_nothing_is_compiled_without_numba(monkeypatch):
    monkeypatch.setenv("TOPOMASK_BACKEND", "reference")
    found = {name: (finding, good) for name, finding, good in checkup.examine(warm_up=True)}
    assert found["warm-up"][0].startswith("nothing to compile: the kernels are pure torch")
    assert found["warm-up"][1]
