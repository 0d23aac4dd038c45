import networkx as nx
import numpy as np
import pytest
import torch

import topomask as tm


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (tm.path_graph(1), nx.path_graph(1)),
        (tm.path_graph(7), nx.path_graph(7)),
        (tm.cycle_graph(5), nx.cycle_graph(5)),
        (tm.grid_graph(3, 4), nx.grid_graph((4, 3))),
        (tm.grid_graph(2, 3, 4), nx.grid_graph((4, 3, 2))),
        (tm.grid_graph(1, 5, 1), nx.path_graph(5)),
        (tm.hypercube_graph(4), nx.hypercube_graph(4)),
        (tm.hypercube_graph(0), nx.empty_graph(1)),
    ],
)
def test_builders_match_networkx(graph, expected):
    found = nx.from_scipy_sparse_array(graph.to_scipy())
    assert nx.is_isomorphic(found, expected)


def test_grid_is_row_major():
    graph = tm.grid_graph(3, 4)
    places = np.stack(np.unravel_index(np.arange(12), (3, 4)), axis=1)
    distance = np.abs(places[:, None] - places[None]).sum(-1)
    np.testing.assert_array_equal(graph.to_scipy().toarray(), distance == 1)


def test_knn_is_exact():
    points = torch.rand(100, 3, generator=torch.Generator().manual_seed(0))
    distance = torch.cdist(points.double(), points.double()).fill_diagonal_(torch.inf)
    nearest = distance.topk(4, largest=False).indices
    expected = torch.zeros(100, 100).scatter_(1, nearest, 1.0).numpy()
    directed = tm.knn_graph(points, 4, directed=True)
    np.testing.assert_array_equal(directed.to_scipy().toarray(), expected)
    undirected = tm.knn_graph(points.numpy(), 4)
    np.testing.assert_array_equal(undirected.to_scipy().toarray(), np.maximum(expected, expected.T))


def test_knn_with_duplicate_points_has_no_self_loops():
    graph = tm.knn_graph(np.zeros((6, 2)), 3, directed=True)
    matrix = graph.to_scipy().toarray()
    assert (matrix.sum(1) == 3).all()
    assert not matrix.diagonal().any()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: tm.grid_graph(), "grid_graph\\(16, 16\\)"),
        (lambda: tm.grid_graph(3, 0), r"shape\[1\].*0"),
        (lambda: tm.grid_graph(2.5), "2.5"),
        (lambda: tm.cycle_graph(2), "at least 3"),
        (lambda: tm.path_graph(-1), "-1"),
        (lambda: tm.hypercube_graph(-1), "-1"),
        (lambda: tm.knn_graph(np.zeros((3, 2)), 3), "less than the number of points"),
        (lambda: tm.knn_graph(np.zeros(3), 1), r"\[N, dim\]"),
        (lambda: tm.knn_graph(np.full((4, 2), np.nan), 1), "point 0"),
        (lambda: tm.knn_graph(np.zeros((4, 2)), 0), "`k`"),
    ],
)
def test_bad_sizes_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()
