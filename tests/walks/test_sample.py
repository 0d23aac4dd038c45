import math
import subprocess
import sys

import numpy as np
import pytest
import torch

import topomask as tm
from helpers.graphs import directed_graph, ragged_batch, ragged_graph, signed_graph, star_graph
from helpers.walk_features import assert_same
from topomask.walks import WalkFeatures

SETTINGS = [
    dict(coupling="repelling", halt_prob=0.0),
    dict(coupling="repelling", halt_prob=0.2),
    dict(coupling="antithetic", halt_prob=0.2),
    dict(coupling="iid", halt_prob=0.2),
]
NAMES = ["repelling", "repelling-halting", "antithetic", "iid"]


def unit(length: int, max_length: int) -> torch.Tensor:
    return torch.eye(max_length + 1, dtype=torch.float64)[length]


@pytest.mark.parametrize("settings", SETTINGS, ids=NAMES)
def test_structure(settings):
    features = tm.sample_features(ragged_graph(), num_walks=7, max_length=4, num_heads=3, **settings)
    assert features.lengths.dtype == torch.uint8
    rows = torch.repeat_interleave(torch.arange(33), features.row_ptr.diff())
    keys = rows * 11 + features.columns
    assert (keys.diff() > 0).all(), "columns ascend in every row"
    entries = torch.repeat_interleave(torch.arange(len(keys)), features.entry_ptr.diff())
    assert ((entries * 100 + features.lengths).diff() > 0).all(), "lengths ascend in every column"
    assert (features.entry_ptr.diff() > 0).all()
    # The start node carries load 1 at length 0, and an isolated node nothing else.
    assert torch.equal(features.to_dense(unit(0, 4)), torch.eye(11, dtype=torch.float64).expand(3, -1, -1))
    isolated = features.rows([4])
    assert isolated.num_nonzeros == 3
    # Heads walk differently.
    dense = features.to_dense(unit(4, 4))
    assert not torch.equal(dense[0], dense[1])


def test_walks_end_at_sinks():
    graph = tm.Graph.from_edges([(0, 1), (1, 2)], directed=True)
    features = tm.sample_features(graph, num_walks=5, max_length=6, dtype=torch.float64)
    f = torch.tensor([1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6], dtype=torch.float64)
    expected = torch.tensor([[1.0, 10.0, 100.0], [0.0, 1.0, 10.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    assert torch.equal(features.to_dense(f)[0], expected)


def test_a_graph_without_edges():
    graph = tm.Graph.from_edges([], num_nodes=3)
    for settings in SETTINGS:
        features = tm.sample_features(graph, max_length=3, **settings)
        assert torch.equal(features.to_dense(torch.ones(4))[0], torch.eye(3))


def test_no_start_nodes():
    features = tm.sample_features(ragged_graph(), max_length=2, num_heads=2, start_nodes=[])
    assert features.values(torch.ones(3)).shape == (0,)
    assert features.to_dense(torch.ones(3)).shape == (2, 0, 11)


def loads_of_walks(walks: torch.Tensor, num_nodes: int, halt_prob: float) -> torch.Tensor:
    """Shares of walkers [R, N, L + 1] that are on a node after some steps, over the probability to get that far."""
    num_rows, num_walks, num_lengths = walks.shape
    shares = torch.zeros(num_rows, num_nodes + 1, num_lengths, dtype=torch.float64)
    shares.scatter_add_(1, walks, torch.ones(walks.shape, dtype=torch.float64))
    return shares[:, :num_nodes] / (num_walks * (1 - halt_prob) ** torch.arange(num_lengths, dtype=torch.float64))


@pytest.mark.parametrize("settings", [*SETTINGS, dict(coupling="iid", halt_prob=0.0)], ids=[*NAMES, "iid-endless"])
@pytest.mark.parametrize(
    "make",
    [lambda: tm.grid_graph(5, 6), ragged_graph, directed_graph, signed_graph, ragged_batch, lambda: star_graph(40)],
)
def test_features_sum_up_random_walks(settings, make):
    graph = make()
    for num_walks, start_nodes in ((1, None), (9, [5, 0, 3, 3])):
        walks = tm.random_walks(
            graph, num_walks, 6, seed=4, head=1, ensemble="key", start_nodes=start_nodes, **settings
        )
        features = tm.sample_features(
            graph,
            num_walks,
            6,
            num_heads=2,
            seed=4,
            ensemble="key",
            start_nodes=start_nodes,
            normalization="row",
            dtype=torch.float64,
            **settings,
        )
        walks[walks < 0] = graph.num_nodes
        expected = loads_of_walks(walks, graph.num_nodes, settings["halt_prob"])
        for length in range(7):
            found = features.to_dense(unit(length, 6))[1]
            if graph.signed:
                # Walkers that come with both signs cancel; one walker has nothing to cancel with.
                assert (found.abs() <= expected[:, :, length] + 1e-12).all()
                if num_walks > 1:
                    continue
                found = found.abs()
            torch.testing.assert_close(found, expected[:, :, length], rtol=1e-14, atol=0)


@pytest.mark.parametrize("settings", SETTINGS, ids=NAMES)
@pytest.mark.parametrize("make", [ragged_graph, directed_graph, signed_graph, ragged_batch])
def test_visits_count_random_walks(settings, make, monkeypatch):
    """Shares of walkers, exactly, by both backends; signs, weights and halting do not count."""
    graph = make()
    walks = tm.random_walks(graph, 7, 5, seed=4, head=1, **settings).numpy()
    options = dict(num_walks=7, max_length=5, num_heads=2, seed=4, weighting="visits", dtype=torch.float64, **settings)
    features = tm.sample_features(graph, **options)
    for length in range(6):
        found = features.to_dense(unit(length, 5))[1].numpy()
        for start in range(graph.num_nodes):
            here = walks[start, :, length]
            assert np.array_equal(found[start], np.bincount(here[here >= 0], minlength=graph.num_nodes) / 7)
    monkeypatch.setenv("TOPOMASK_BACKEND", "reference")
    assert_same(tm.sample_features(graph, **options), features)
    again = WalkFeatures.from_state(features.state())
    assert (again.weighting, again.normalization) == ("visits", "row")
    assert features.rows([0]).weighting == WalkFeatures.batch([features, features]).weighting == "visits"


def test_random_walks_follow_edges_and_stay_ended():
    graph = directed_graph()
    walks = tm.random_walks(graph, 50, 8, halt_prob=0.1, coupling="repelling")
    assert walks.shape == (7, 50, 9)
    assert walks.dtype == torch.int64
    assert torch.equal(walks[:, :, 0], torch.arange(7)[:, None].expand(-1, 50))
    here, there = walks[:, :, :-1].flatten().numpy(), walks[:, :, 1:].flatten().numpy()
    assert (there[here < 0] == -1).all()
    stepped = there >= 0
    assert (graph.to_scipy().toarray()[here[stepped], there[stepped]] != 0).all()


def test_random_walks_without_steps_or_starts():
    assert tm.random_walks(tm.path_graph(3), 2, 0).tolist() == [[[0], [0]], [[1], [1]], [[2], [2]]]
    assert tm.random_walks(tm.path_graph(3), 2, 4, start_nodes=[]).shape == (0, 2, 5)
    assert (tm.random_walks(tm.Graph.from_edges([], 3), 1, 2)[:, 0, 1:] == -1).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_walks": 0}, "num_walks"),
        ({"length": -1}, "length"),
        ({"length": 2.0}, "length"),
        ({"head": -1}, "head"),
        ({"seed": 2**63}, "seed"),
        ({"halt_prob": 1.0}, "halt_prob"),
        ({"coupling": "antithetic"}, "do nothing"),
        ({"coupling": "quasi"}, "coupling"),
        ({"ensemble": "value"}, "ensemble"),
        ({"start_nodes": [11]}, r"start_nodes\[0\] is 11"),
    ],
)
def test_bad_arguments_of_random_walks_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        tm.random_walks(ragged_graph(), **options)


def test_length_zero_walks():
    assert torch.equal(tm.sample_features(tm.path_graph(4), max_length=0).to_dense(torch.ones(1))[0], torch.eye(4))


def test_one_path_is_followed_exactly():
    """On a path of two nodes nothing is random: loads are the powers of W, whatever the normalisation."""
    graph = tm.Graph.from_edges([(0, 1)], weights=[-3.0], signed=True)
    for normalization in ("sym", "row", "none"):
        features = tm.sample_features(
            graph, num_walks=3, max_length=4, normalization=normalization, dtype=torch.float64
        )
        w = torch.from_numpy(graph.adjacency(normalization).toarray())
        for length in range(5):
            power = torch.linalg.matrix_power(w, length)
            torch.testing.assert_close(features.to_dense(unit(length, 4))[0], power, rtol=1e-14, atol=0)


def test_repelling_walkers_spread_evenly():
    """Walkers of one node leave it in the proportions of its edges, to within one walker."""
    rng = np.random.default_rng(0)
    weights = rng.uniform(0.1, 1.0, 6)
    graph = tm.Graph.from_edges([(0, j) for j in range(1, 7)], weights=weights, directed=True)
    share = weights / weights.sum()
    for num_walks in (1, 7, 64):
        for seed in range(20):
            row = tm.sample_features(graph, num_walks, 1, seed=seed, dtype=torch.float64).rows([0])
            counts = row.to_dense(unit(1, 1))[0, 0, 1:].numpy() * num_walks
            assert (np.abs(counts - num_walks * share) < 1 + 1e-9).all()


def test_walkers_keep_their_own_law():
    """Steps of a single walker follow the weights, for every coupling: a chi-squared test at 1e-6 each."""
    from scipy import stats

    weights = np.array([1.0, 2.0, 3.0, 0.5])
    graph = tm.Graph.from_edges([(0, j) for j in range(1, 5)], weights=weights, directed=True)
    for settings in SETTINGS:
        halt_prob = settings["halt_prob"]
        counts = np.zeros(5)
        trials = 4000
        # Row 0 of 4000 heads; the first step of one walker out of one is its own law.
        features = tm.sample_features(graph, 1, 1, num_heads=trials, start_nodes=[0], seed=5, **settings)
        dense = features.to_dense(unit(1, 1))[:, 0, 1:].numpy() * (1 - halt_prob)
        counts[1:] = dense.sum(0)
        counts[0] = trials - counts[1:].sum()
        expected = trials * np.concatenate([[halt_prob], (1 - halt_prob) * weights / weights.sum()])
        used = expected > 0
        assert counts[~used].sum() == 0
        assert stats.chisquare(counts[used], expected[used]).pvalue > 1e-6


@pytest.mark.parametrize("settings", SETTINGS, ids=NAMES)
@pytest.mark.parametrize("make", [ragged_graph, directed_graph, signed_graph])
def test_some_start_nodes_give_rows_of_the_whole(settings, make):
    graph = make()
    options = dict(num_walks=5, max_length=3, num_heads=2, seed=9, **settings)
    whole = tm.sample_features(graph, **options)
    nodes = [5, 0, 3]
    assert_same(tm.sample_features(graph, **options, start_nodes=nodes), whole.rows(nodes))


@pytest.mark.parametrize("settings", SETTINGS, ids=NAMES)
def test_a_partition_walks_like_the_whole(settings):
    graph = tm.Graph.batch([tm.grid_graph(6, 7), ragged_graph()])
    options = dict(num_walks=5, max_length=3, num_heads=2, seed=9, **settings)
    whole = tm.sample_features(graph, **options)
    for nodes in ([0, 1, 7], [43, 45, 51]):
        seen = graph.neighborhood(nodes, num_hops=3)
        # A batch repeats ids, so the part is matched by (graph, id).
        known = {(g, i): k for k, (g, i) in enumerate(zip(graph.graph_index, graph.ids, strict=True))}
        first = graph.graph_index[nodes[0]]
        columns = torch.tensor([known[(first, i)] for i in seen.ids])
        starts = [int((columns == node).nonzero()) for node in nodes]
        part = tm.sample_features(seen, **options, start_nodes=starts)
        rows = whole.rows(nodes)
        assert seen.num_nodes < graph.num_nodes
        assert torch.equal(columns[part.columns], rows.columns)
        assert torch.equal(part.loads, rows.loads)
        assert torch.equal(part.row_ptr, rows.row_ptr)


@pytest.mark.parametrize("settings", SETTINGS, ids=NAMES)
def test_a_batch_walks_like_its_graphs(settings):
    """Also where a weighted graph stands beside an unweighted one."""
    parts = [tm.grid_graph(3, 3), ragged_graph(), tm.path_graph(1), tm.cycle_graph(7)]
    options = dict(num_walks=6, max_length=4, num_heads=3, seed=2, **settings)
    one_by_one = [tm.sample_features(part, **options) for part in parts]
    assert_same(tm.sample_features(tm.Graph.batch(parts), **options), WalkFeatures.batch(one_by_one))


def test_chunks_do_not_matter(monkeypatch):
    from topomask.ops.sample_walks import reference

    whole = tm.sample_features(ragged_batch(), num_walks=4, max_length=3)
    monkeypatch.setattr(reference, "_WALKERS_PER_CHUNK", 12)
    assert_same(tm.sample_features(ragged_batch(), num_walks=4, max_length=3), whole)


def test_threads_and_processes_do_not_matter():
    """The same seed gives the same bits in this process and in others with one and two threads."""
    script = (
        "import sys, torch, topomask as tm; torch.set_num_threads(int(sys.argv[1]));"
        "print(tm.sample_features(tm.grid_graph(40, 50), num_heads=2, halt_prob=0.1, seed=7).fingerprint)"
    )
    here = tm.sample_features(tm.grid_graph(40, 50), num_heads=2, halt_prob=0.1, seed=7).fingerprint
    for threads in ("1", "2"):
        run = subprocess.run([sys.executable, "-c", script, threads], capture_output=True, text=True, check=True)
        assert run.stdout.strip() == here


def test_draws_depend_on_everything_they_should():
    graph = tm.grid_graph(6, 6)
    base = dict(num_walks=4, max_length=5, coupling="iid", halt_prob=0.1, seed=3)
    prints = {
        tm.sample_features(graph, **(base | change)).fingerprint
        for change in (
            {},
            {"seed": 4},
            {"ensemble": "key"},
            {"coupling": "repelling"},
            {"coupling": "antithetic"},
            {"num_walks": 5},
        )
    }
    assert len(prints) == 6
    # Seeds and heads must not be interchangeable, as they would be if words were added up.
    first = tm.sample_features(graph, **base, num_heads=2).to_dense(torch.ones(6))
    second = tm.sample_features(graph, **(base | {"seed": 4}), num_heads=2).to_dense(torch.ones(6))
    assert not torch.equal(first[1], second[0])


def test_the_sampler_has_not_changed():
    """Checkpoints rely on it: other walks need another SAMPLER_VERSION."""
    from topomask.walks import SAMPLER_VERSION

    features = tm.sample_features(ragged_graph(), num_walks=6, max_length=4, num_heads=2, halt_prob=0.1, seed=123)
    assert (SAMPLER_VERSION, features.fingerprint) == (1, "fe79ee9364b5ac014402d863000fd267")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_walks": 0}, "num_walks"),
        ({"num_walks": 2.0}, "num_walks"),
        ({"max_length": -1}, "max_length"),
        ({"max_length": 40000}, "32767"),
        ({"num_heads": 0}, "num_heads"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"halt_prob": 1.0}, "halt_prob"),
        ({"halt_prob": math.nan}, "halt_prob"),
        ({"coupling": "antithetic"}, "do nothing"),
        ({"coupling": "quasi"}, "coupling"),
        ({"ensemble": "value"}, "ensemble"),
        ({"normalization": "column"}, "normalization"),
        ({"weighting": "frequency"}, "weighting"),
        ({"weighting": "visits", "normalization": "sym"}, "not weighted by W"),
        ({"dtype": torch.float16}, "float32"),
        ({"start_nodes": [0, 11]}, r"start_nodes\[1\] is 11"),
        ({"start_nodes": [-1]}, "-1"),
        ({"start_nodes": torch.ones(11, dtype=torch.bool)}, "nonzero"),
    ],
)
def test_bad_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        tm.sample_features(ragged_graph(), **options)


def test_directed_neighbour_lists_are_enumerated():
    """27 repelling walkers of 3 hops on lists of 3 neighbours take every walk once.

    Groups merge where two ways lead to one node, but then they have 6, 9, ... walkers instead of 3: still a multiple of
    the neighbours, so the shares stay exact.
    """
    points = np.random.default_rng(0).random((1024, 3))
    graph = tm.knn_graph(points, 3, directed=True)
    w = torch.from_numpy(graph.adjacency("row").toarray())
    f = torch.tensor([1.0, 0.7, 0.5, 0.3], dtype=torch.float64)
    features = tm.sample_features(graph, 27, 3, normalization="row")
    found = features.to_dense(f)[0]
    expected = sum(f[k] * torch.linalg.matrix_power(w, k) for k in range(4))
    assert (found - expected).abs().max() < 1e-5
    # Groups do merge: fewer than 9 different second neighbours.
    second = (features.to_dense(unit(2, 3))[0] != 0).sum(dim=1)
    assert (second < 9).double().mean() > 0.5


def test_star_stays_sparse():
    features = tm.sample_features(star_graph(1000), num_walks=8, max_length=4)
    assert features.num_nonzeros <= 1001 * (8 * 4 + 1)
