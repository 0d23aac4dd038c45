import numpy as np
import pytest

from benchmarks import node_training, report


def test_a_quick_run_measures_time_and_memory_of_every_way(monkeypatch, capsys):
    saved = {}
    monkeypatch.setattr(report, "save", lambda _, results: saved.update(results))
    # Processes of their own take seconds each.
    monkeypatch.setattr(node_training, "run_fresh", lambda _, way, *__: {"before": 10, "peak": 10 + len(way)})
    node_training.main(quick=True)
    assert set(saved["seconds"]) == set(saved["memory"]) == set(node_training.WAYS)
    assert len(saved["bars"]) == 4
    assert saved["bars"]["memory of a step, grf / GATConv"]["measured"] == pytest.approx(3 / 7)
    assert "more MB" in capsys.readouterr().out


def test_memory_is_above_what_is_held_and_not_above_the_peak_of_loading(monkeypatch):
    load = node_training.load

    def load_with_a_peak(quick):
        np.ones(2**25).sum()
        return load(quick)

    monkeypatch.setattr(node_training, "load", load_with_a_peak)
    found = node_training.measure_memory("GATConv", True)
    # A step on 500 nodes takes a few megabytes, less the rounding of what is held; loading took 256 for a while.
    assert -(2**20) < found["peak"] - found["before"] < 2**27
