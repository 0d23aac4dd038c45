import numpy as np
import pytest
import torch

import topomask as tm
from benchmarks import frontiers


def test_errors_are_between_those_of_walks_and_the_best_possible():
    case = frontiers.Case("grid", lambda: tm.grid_graph(8, 8), 0.5, 4)
    found = frontiers.measure_errors(case, case.make())
    assert found.best <= found.largest < found.resample < found.repelling < found.iid
    assert found.looseness >= 1


def test_exact_rows():
    case = frontiers.Case("path", lambda: tm.path_graph(5), 0.5, 3)
    truth = frontiers.Truth(case, case.make())
    w = case.make().adjacency("sym").toarray()
    exact = sum(0.5**k * np.linalg.matrix_power(w, k) for k in range(4))
    torch.testing.assert_close(truth.exact, torch.from_numpy(exact))
    assert truth.best(5) == 0
    assert 0 < truth.best(3) < truth.best(1) < 1


def test_entries_between_two_widths():
    found = frontiers._bracket(lambda width: 3.0 * width, 40.0)
    assert (found.low, found.high) == (13, 14)
    assert found.between(lambda width: 3.0 * width) == pytest.approx(40.0)


@pytest.mark.parametrize("kind", ["grid", "star", "Barabasi-Albert"])
def test_graphs_that_grow(kind):
    graph = frontiers.grow_graph(kind, 512)
    assert graph.num_nodes == 512
    if kind == "Barabasi-Albert":
        assert graph.num_edges > 1400
        assert graph.degrees.max() > 30
