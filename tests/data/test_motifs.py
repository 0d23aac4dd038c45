import networkx as nx
import numpy as np
import pytest

from topomask.data import MOTIFS, motifs
from topomask.data.motifs import largest_neighbor_degrees

# The authors' caveman motif: three caves, the last nodes of which are joined.
CAVES = nx.compose(nx.caveman_graph(3, 3), nx.cycle_graph([2, 5, 8]))
EXPECTED = {
    "caveman": CAVES,
    "cycle": nx.cycle_graph(10),
    "grid": nx.grid_2d_graph(3, 3),
    "ladder": nx.ladder_graph(5),
    "circular-ladder": nx.circular_ladder_graph(5),
}


@pytest.mark.parametrize("name", MOTIFS)
def test_motifs_are_those_of_networkx(name):
    make, _ = MOTIFS[name]
    found = nx.Graph(make().tolist())
    assert nx.is_isomorphic(found, EXPECTED[name])


@pytest.mark.parametrize("name", MOTIFS)
def test_motifs_are_connected(name):
    assert nx.is_connected(nx.Graph(MOTIFS[name][0]().tolist()))


def test_the_caveman_motif_is_that_of_the_authors():
    edges = {tuple(sorted(edge)) for edge in MOTIFS["caveman"][0]().tolist()}
    assert len(edges) == 12
    assert {(2, 5), (2, 8), (5, 8)} < edges


@pytest.mark.parametrize("name", MOTIFS)
def test_half_of_the_graphs_hold_the_motif_on_the_same_base(name):
    found = motifs(name, "val", num_pairs=12, seed=5)
    assert found.labels.tolist() == [1, 0] * 12
    motif = EXPECTED[name]
    size, edges = motif.number_of_nodes(), motif.number_of_edges()
    for number in range(0, len(found), 2):
        with_motif, without = (
            nx.from_scipy_sparse_array(graph.to_scipy()) for graph in found.graphs[number : number + 2]
        )
        assert len(with_motif) == len(without)
        num_base = len(with_motif) - size
        base, pattern = range(num_base), range(num_base, num_base + size)
        assert nx.is_isomorphic(with_motif.subgraph(pattern), motif)
        assert without.subgraph(pattern).number_of_edges() == edges
        assert nx.utils.graphs_equal(with_motif.subgraph(base), without.subgraph(base))
        # Nodes that the base leaves alone are removed; no node of a motif is alone, and so none of a random graph.
        for part in (with_motif.subgraph(base), without.subgraph(pattern)):
            assert min(degree for _, degree in part.degree()) >= 1
        for whole in (with_motif, without):
            parts = whole.subgraph(base).number_of_edges() + whole.subgraph(pattern).number_of_edges()
            assert whole.number_of_edges() > parts


def test_numbers_of_edges_follow_the_probabilities():
    """Over 200 bases of 4,950 possible edges and 400 joins of some 800: false alarms below one in a million each."""
    found = motifs("grid", "train", num_pairs=200)
    joins, possible, edges, nodes = [], [], [], []
    for graph in found.graphs:
        matrix = graph.to_scipy().toarray() > 0
        num_base = graph.num_nodes - 9
        joins.append(matrix[:num_base, num_base:].sum())
        possible.append(9 * num_base)
        edges.append(matrix[:num_base, :num_base].sum() // 2)
        nodes.append(num_base)
    mean, deviation = 4950 * 0.026666, np.sqrt(4950 * 0.026666 * (1 - 0.026666) / 200)
    assert abs(np.mean(edges) - mean) < 5 * deviation
    # A node of the base is alone with probability (1 - p)^99.
    assert abs(np.mean(nodes) / 100 - (1 - (1 - 0.026666) ** 99)) < 0.02
    rate = np.array(possible) * 0.004
    # Where there is none, one is added.
    expected, spread = (rate + np.exp(-rate)).mean(), np.sqrt(rate.mean() / len(rate))
    assert abs(np.mean(joins) - expected) < 5 * spread
    assert min(joins) == 1


def test_features_are_the_five_largest_degrees_of_neighbours():
    found = motifs("cycle", "test", num_pairs=3)
    for graph, x in zip(found.graphs, found.features, strict=True):
        given = nx.from_scipy_sparse_array(graph.to_scipy())
        for node in given:
            degrees = sorted((given.degree(other) for other in given[node]), reverse=True)[:5]
            assert x[node].tolist() == degrees + [0.0] * (5 - len(degrees))
    assert largest_neighbor_degrees(found.graphs[0], 1).shape == (found.graphs[0].num_nodes, 1)


def test_everything_is_drawn_from_the_seed_the_split_and_the_number():
    first, longer = motifs("ladder", "test", num_pairs=2), motifs("ladder", "test", num_pairs=4)
    assert [a.fingerprint for a in first.graphs] == [b.fingerprint for b in longer.graphs[:4]]
    others = [motifs("ladder", "val", num_pairs=2), motifs("ladder", "test", num_pairs=2, seed=1)]
    prints = {graph.fingerprint for found in [first, *others] for graph in found.graphs}
    assert len(prints) == 12


def test_sizes_and_bad_arguments():
    assert len(motifs("cycle", "test")) == 512
    for arguments, message in (
        (("star",), "`name` must be one of caveman, cycle, grid, ladder, circular-ladder, but is 'star'"),
        (("grid", "all"), "`split` of grid must be one of train, val, test"),
    ):
        with pytest.raises(ValueError, match=message):
            motifs(*arguments)
    with pytest.raises(ValueError, match="`num_pairs` must be at least 1"):
        motifs("grid", num_pairs=0)
