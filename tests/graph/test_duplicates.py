"""Edges that are listed more than once."""

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch

import topomask as tm

EDGES, WEIGHTS = [(0, 1), (1, 2), (1, 0), (0, 1), (2, 2), (2, 2)], [1.0, 2.0, 5.0, 3.0, 4.0, 8.0]
UNDIRECTED = {"sum": (9.0, 2.0, 12.0), "mean": (3.0, 2.0, 6.0), "first": (1.0, 2.0, 4.0)}
# Of (0, 1), (1, 0), (1, 2) and (2, 2).
DIRECTED = {"sum": (4.0, 5.0, 2.0, 12.0), "mean": (2.0, 5.0, 2.0, 6.0), "first": (1.0, 5.0, 2.0, 4.0)}


@pytest.mark.parametrize("duplicates", ["sum", "mean", "first"])
@pytest.mark.parametrize("flip", [False, True], ids=["[E, 2]", "[2, E]"])
def test_weights_are_merged(duplicates, flip):
    edges = np.array(EDGES).T if flip else np.array(EDGES)
    a, b, c = UNDIRECTED[duplicates]
    found = tm.Graph.from_edges(edges, weights=WEIGHTS, duplicates=duplicates).to_scipy().toarray()
    assert found.tolist() == [[0, a, 0], [a, 0, b], [0, b, c]]
    a, d, b, c = DIRECTED[duplicates]
    found = tm.Graph.from_edges(edges, weights=WEIGHTS, directed=True, duplicates=duplicates).to_scipy().toarray()
    assert found.tolist() == [[0, a, 0], [d, 0, b], [0, 0, c]]


def test_first_is_the_first_that_is_listed_in_either_direction():
    found = tm.Graph.from_edges([(1, 0), (0, 1)], weights=[7.0, 1.0], duplicates="first")
    assert found.weights.tolist() == [7.0, 7.0]


@pytest.mark.parametrize("directed", [False, True])
def test_the_error_says_how_to_merge(directed):
    with pytest.raises(ValueError, match=r"Edge \(0, 1\) .*1.0 and .*duplicates='sum', 'mean' or 'first'"):
        tm.Graph.from_edges(EDGES, weights=WEIGHTS, directed=directed)


def test_equal_weights_still_count_once():
    assert tm.Graph.from_edges([(0, 1), (1, 0)], weights=[0.1, 0.1]).weights.tolist() == [0.1, 0.1]
    assert tm.Graph.from_edges([(0, 1)] * 3, weights=[0.1] * 3, duplicates="mean").weights.tolist() == [0.1, 0.1]
    # Without weights, the sum counts the listings.
    assert tm.Graph.from_edges([(0, 1)] * 3, duplicates="sum").weights.tolist() == [3.0, 3.0]


def test_sum_of_zero_is_no_edge_and_sums_must_be_finite():
    given = {"weights": [1.0, -1.0], "signed": True, "duplicates": "sum"}
    assert tm.Graph.from_edges([[0, 0], [1, 1]], **given).num_edges == 0
    with pytest.raises(ValueError, match=r"edge \(0, 1\) overflow"):
        tm.Graph.from_edges([[0, 0], [1, 1]], weights=[1e308, 1e308], duplicates="sum")


@pytest.mark.parametrize("duplicates", ["max", 1, ["sum"]])
def test_unknown_ways_are_named(duplicates):
    with pytest.raises(ValueError, match=r"`duplicates` must be one of \('sum', 'mean', 'first'\)"):
        tm.Graph.from_edges([(0, 1)], duplicates=duplicates)
    with pytest.raises(ValueError, match="`duplicates` must be"):
        tm.Graph.from_scipy(sp.csr_array((2, 2)), duplicates=duplicates)
    with pytest.raises(ValueError, match="`duplicates` must be"):
        tm.Graph.from_networkx(nx.path_graph(3), duplicates=duplicates)


def test_no_edges_are_merged():
    assert tm.Graph.from_edges(np.zeros((2, 0), int), 3, duplicates="sum").num_edges == 0


@pytest.mark.parametrize(("duplicates", "expected"), [("sum", 6.0), ("mean", 3.0), ("first", 1.0)])
@pytest.mark.parametrize("form", ["coo", "csr"])
def test_scipy_duplicates(duplicates, expected, form):
    places = np.array([0, 1, 0, 1]), np.array([1, 0, 1, 0])
    matrix = sp.coo_array((np.array([1.0, 1.0, 5.0, 5.0]), places), shape=(2, 2))
    if form == "csr":
        matrix = sp.csr_array(
            (np.array([1.0, 5.0, 1.0, 5.0]), np.array([1, 1, 0, 0]), np.array([0, 2, 4])), shape=(2, 2)
        )
    found = tm.Graph.from_scipy(matrix, duplicates=duplicates)
    assert found.weights.tolist() == [expected, expected]
    assert tm.Graph.from_scipy(matrix).weights.tolist() == [6.0, 6.0]


@pytest.mark.parametrize(("duplicates", "expected"), [("sum", 6.0), ("mean", 2.0), ("first", 3.0)])
@pytest.mark.parametrize("kind", [nx.MultiGraph, nx.MultiDiGraph])
def test_parallel_edges_of_networkx(duplicates, expected, kind):
    graph = kind()
    graph.add_nodes_from("cab")
    graph.add_edge("a", "b", weight=3.0)
    graph.add_edge("a", "b", weight=2.0)
    graph.add_edge("a", "b")
    found = tm.Graph.from_networkx(graph, duplicates=duplicates).to_scipy().toarray()
    assert (found[1, 2], found[2, 1]) == (expected, 0.0 if graph.is_directed() else expected)
    assert tm.Graph.from_networkx(graph).to_scipy()[1, 2] == 6.0
    assert tm.Graph.from_networkx(nx.empty_graph(3, kind), duplicates=duplicates).num_edges == 0


class Data:
    """What is read of PyG's Data."""

    def __init__(self, edges: list, weights: list) -> None:
        self.edge_index, self.edge_weight = torch.tensor(edges).T, torch.tensor(weights)
        self.num_nodes = 3


def test_pyg_merges_each_direction():
    data = Data([(0, 1), (0, 1), (1, 0), (1, 0)], [1.0, 5.0, 1.0, 5.0])
    with pytest.raises(ValueError, match="duplicates='sum'"):
        tm.Graph.from_pyg(data)
    assert tm.Graph.from_pyg(data, duplicates="sum").weights.tolist() == [6.0, 6.0]
    assert tm.Graph.from_pyg(data, duplicates="mean").weights.tolist() == [3.0, 3.0]
    data = Data([(0, 1), (0, 1), (1, 0)], [1.0, 5.0, 7.0])
    with pytest.raises(ValueError, match="must be symmetric"):
        tm.Graph.from_pyg(data, duplicates="sum")
    assert tm.Graph.from_pyg(data, duplicates="first", directed=True).weights.tolist() == [1.0, 7.0]
