"""Sizes that no memory holds are refused before anything is allocated."""

import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import topomask as tm
from topomask.graph import input

BATCH = {"edge_index": torch.tensor([[0], [0]]), "num_nodes": 2, "batch": torch.tensor([0, 10**12])}
TOO_LARGE = {
    "num_nodes": (lambda: tm.Graph.from_edges([(0, 1)], 2**62), r"`num_nodes` asks for .* at most 268,435,456"),
    "num_nodes beyond int64": (lambda: tm.Graph.from_edges([(0, 1)], 2**70), "at most 268,435,456"),
    "num_nodes of NumPy": (lambda: tm.Graph.from_edges([(0, 1)], np.int64(2**62)), "at most 268,435,456"),
    "node number": (lambda: tm.Graph.from_edges([(0, 4 * 10**9)]), "at most 268,435,456"),
    "lonely node number": (lambda: tm.Graph.from_edges([(0, 2 * 10**8)]), "more than 16,777,216 nodes. Renumber"),
    "grid": (lambda: tm.grid_graph(2**40, 2**40), "`shape` asks for .* at most 268,435,456"),
    "grid of NumPy": (lambda: tm.grid_graph(np.int32(2**20), np.int32(2**20)), "at most 268,435,456"),
    "path": (lambda: tm.path_graph(2**62), "at most 268,435,456"),
    "cycle": (lambda: tm.cycle_graph(2**62), "at most 268,435,456"),
    "hypercube": (lambda: tm.hypercube_graph(80), "`dim` must be .* at most 28, but is 80"),
    "hypercube of many digits": (lambda: tm.hypercube_graph(10**30), "at most 28"),
    "neighbours": (lambda: tm.knn_graph(np.eye(4), 2**62), "`k` must be less than the number of points, 4"),
    "matrix": (lambda: tm.Graph.from_scipy(sp.coo_array((2**40, 2**40))), "`matrix` asks for"),
    "graphs of a batch": (
        lambda: tm.Graph.from_pyg(types.SimpleNamespace(**BATCH)),
        "`batch` must be less than 268,435,456, but has 1000000000000",
    ),
}


@pytest.mark.parametrize(("build", "message"), TOO_LARGE.values(), ids=list(TOO_LARGE))
def test_too_large(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_the_limit_is_raised_by_name(monkeypatch):
    monkeypatch.setattr(input, "_MAX_NODES", 3)
    monkeypatch.setenv("TOPOMASK_MAX_NODES", "5")
    assert tm.path_graph(5).num_nodes == 5
    with pytest.raises(ValueError, match=r"at most 5. Make it smaller; .* TOPOMASK_MAX_NODES"):
        tm.path_graph(6)
    monkeypatch.setenv("TOPOMASK_MAX_NODES", "many")
    with pytest.raises(ValueError, match="TOPOMASK_MAX_NODES must be a non-negative integer, but is 'many'"):
        tm.path_graph(4)


def test_dimensions_of_size_one_are_no_limit():
    assert tm.grid_graph(*[1] * 100, 3, 1, 2).fingerprint == tm.grid_graph(3, 2).fingerprint
    assert tm.grid_graph(1, 1).num_nodes == 1


BROKEN = """
import numpy as np, scipy.sparse as sp, topomask as tm
from topomask.nn import SparseRows

def broken(kind, **changes):
    matrix = kind(tm.path_graph(4).to_scipy())
    for name, value in changes.items():
        setattr(matrix, name, np.array(value))
    return matrix

wrong = [
    broken(kind, **changes) for kind in (sp.csr_array, sp.csc_array) for changes in (
        {"indptr": [0, -(2**63), -(2**63), 5, 6]}, {"indptr": [0, 2**63 - 1, -(2**63), 5, 6]},
        {"indptr": [0, 1, 3, 5, 600]}, {"indptr": [0, 1, 3, 5]}, {"indices": [1, 0, 2, 1, 3, 10**6]},
        {"indices": [1, 0, 2, -1, 3, 2]}, {"indices": [1, 0]}, {"indices": [1.0, 0, 2, 1, 3, 2]},
    )
]
wrong += [broken(sp.coo_array, row=[0, 1, 1, 2, 2, 10**6]), broken(sp.coo_array, col=[1, 0, 2, 1, 3, -1])]
wrong += [broken(sp.coo_array, data=[1.0])]
for number, matrix in enumerate(wrong):
    for use in (tm.Graph.from_scipy, lambda m: tm.Graph.from_scipy(m, duplicates="mean"), SparseRows.from_scipy):
        try:
            use(matrix)
        except ValueError as error:
            assert "is broken" in str(error), error
        else:
            raise AssertionError(f"{number} was taken")
"""


def test_broken_scipy_matrices_are_refused():
    environment = os.environ | {"PYTHONPATH": str(Path(tm.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", BROKEN], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
