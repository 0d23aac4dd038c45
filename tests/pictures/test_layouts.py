import numpy as np
import pytest
from scipy.sparse.csgraph import shortest_path
from scipy.stats import spearmanr

import topomask as tm
from topomask.pictures import layouts
from topomask.pictures.layouts import layout
from topomask.pictures.named_graphs import load_graph


def agreement(graph: tm.Graph, places: np.ndarray) -> float:
    """Rank correlation of distances in the graph and in the plane."""
    far = shortest_path(graph.to_scipy(), unweighted=True)
    apart = np.linalg.norm(places[:, None] - places, axis=-1)
    pairs = np.triu_indices(len(places), 1)
    return float(spearmanr(far[pairs], apart[pairs]).statistic)


@pytest.mark.parametrize(
    ("text", "least"), [("grid:8x12", 0.97), ("path:40", 0.999), ("tree:80", 0.8), ("cycle:30", 0.97), ("knn:150", 0.9)]
)
def test_distances_are_kept(text, least):
    graph = load_graph(text).graph
    assert agreement(graph, layout(graph)) > least


def test_large_components_are_laid_out_by_pivots(monkeypatch):
    monkeypatch.setattr(layouts, "_ALL_PAIRS", 50)
    graph = tm.grid_graph(12, 15)
    assert agreement(graph, layout(graph)) > 0.95


def test_components_and_lone_nodes_stand_apart():
    graph = tm.Graph.from_edges([(0, 1), (1, 2), (2, 0), (3, 4), (6, 7), (7, 8)], num_nodes=12)
    places = layout(graph)
    assert np.isfinite(places).all()
    apart = np.linalg.norm(places[:, None] - places, axis=-1) + 10 * np.eye(12)
    assert apart.min() > 0.4
    groups = [[0, 1, 2], [3, 4], [6, 7, 8], [5, 9, 10, 11]]
    for group in groups:
        rest = [node for node in range(12) if node not in group]
        assert apart[np.ix_(group, rest)].min() > 0.99


@pytest.mark.parametrize("size", [1, 2, 3])
def test_tiny_graphs(size):
    assert layout(tm.path_graph(size)).shape == (size, 2)
    assert np.isfinite(layout(tm.path_graph(size))).all()


def test_directed_signed_graphs_and_twins():
    graph = tm.Graph.from_edges(
        [(0, 1), (1, 2), (0, 3), (3, 3)], weights=[1.0, -2.0, 1.0, 1.0], directed=True, signed=True
    )
    assert np.isfinite(layout(graph)).all()
    leaves = np.arange(1, 30)
    star = tm.Graph.from_edges(np.stack([np.zeros_like(leaves), leaves]))
    places = layout(star)
    apart = np.linalg.norm(places[:, None] - places, axis=-1) + 10 * np.eye(30)
    assert apart.min() > 0.01, "leaves, which all have the same distances, do not fall together"


def test_the_seed_decides():
    graph = load_graph("tree:30").graph
    assert np.array_equal(layout(graph, 1), layout(graph, 1))
