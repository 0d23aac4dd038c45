"""The compiled frontiers give the bits of the reference; and the pieces of both do what they say."""

import numpy as np
import pytest
import torch

import topomask as tm
from helpers.frontiers import GRAPHS, random_graph, settings_of
from helpers.graphs import ragged_batch, signed_graph, star_graph
from topomask.ops.expand_frontiers import Edges, expand_frontiers, numba, reference
from topomask.ops.expand_frontiers.hubs import cut_hubs
from topomask.ops.expand_frontiers.ordering import magnitudes, tie_hashes
from topomask.ops.expand_frontiers.reference import thin
from topomask.walks.expand import _edges


def assert_same(found, expected) -> None:
    for a, b in zip((*found.loads, *found[1:]), (*expected.loads, *expected[1:]), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype
            assert torch.equal(a, b)


SETTINGS = [
    *(dict(prune="resample", seed=seed, ensemble=seed % 2) for seed in (0, 5)),
    dict(),
    dict(max_entries=1),
    dict(max_entries=5),
    dict(max_entries=10**6),
    dict(tolerance=0.3, max_entries=10**6),
    dict(tolerance=0.05, max_entries=9),
    dict(tolerance=0.0, max_entries=10**6),
]


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_same_bits_as_the_reference(name, options):
    make, normalizations = GRAPHS[name]
    graph = make()
    heads = [2, 0] if "prune" in options else [0]
    for normalization in normalizations:
        edges = _edges(graph, normalization)
        for width, max_length in ((1, 3), (3, 4), (8, 6), (200, 3), (5, 0)):
            settings = settings_of(width, max_length, normalization=normalization, **options)
            nodes = torch.arange(graph.num_nodes)
            for start_nodes in (nodes, nodes.flip(0)[:5], nodes[:0]):
                expected = reference.expand_frontiers(edges, start_nodes, settings, heads)
                assert_same(numba.expand_frontiers(edges, start_nodes, settings, heads), expected)


@pytest.mark.parametrize("seed", range(60))
def test_same_bits_on_random_graphs(seed):
    rng = np.random.default_rng(seed)
    graph = random_graph(seed)
    normalization = str(rng.choice(["row", "none"] if graph.directed else ["sym", "row", "none"]))
    width, max_length = int(rng.integers(1, 12)), int(rng.integers(0, 7))
    edges, nodes = _edges(graph, normalization), torch.arange(graph.num_nodes)
    for options in (dict(prune="resample", seed=seed), dict(), dict(max_entries=3), dict(tolerance=0.2)):
        settings = settings_of(width, max_length, normalization=normalization, **options)
        expected = reference.expand_frontiers(edges, nodes, settings, [0])
        assert_same(numba.expand_frontiers(edges, nodes, settings, [0]), expected)


@pytest.mark.parametrize("prune", ["largest", "resample"])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_chunks_and_threads_do_not_matter(monkeypatch, threads, prune):
    """More rows than a block has at least, so that every thread gets some."""
    graph = tm.Graph.batch([ragged_batch(), tm.grid_graph(10, 13), signed_graph()])
    edges, nodes = _edges(graph, "sym"), torch.arange(graph.num_nodes)
    settings = settings_of(6, 5, prune)
    heads = [0] if prune == "largest" else [0, 1]
    expected = reference.expand_frontiers(edges, nodes, settings, heads)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for chunk in (1 << 23, 20 * 31):
            monkeypatch.setattr(numba, "_ENTRIES_PER_CHUNK", chunk)
            monkeypatch.setattr(reference, "_TERMS_PER_CHUNK", chunk)
            assert_same(numba.expand_frontiers(edges, nodes, settings, heads), expected)
            assert_same(reference.expand_frontiers(edges, nodes, settings, heads), expected)
    finally:
        torch.set_num_threads(before)


def test_long_rows_of_a_large_graph():
    """Lengths that need more than a byte, and a hash table that nodes far apart share."""
    rng = np.random.default_rng(1)
    graph = tm.Graph.from_edges(rng.integers(0, 200_000, (2, 400_000)), 200_000)
    edges, nodes = _edges(graph, "sym"), torch.from_numpy(rng.integers(0, 200_000, 20))
    for max_length, dtype in ((6, torch.uint8), (300, torch.int16)):
        for prune in ("largest", "resample"):
            settings = settings_of(30, max_length, prune)
            expected = reference.expand_frontiers(edges, nodes, settings, [0])
            assert expected.loads.lengths.dtype == dtype
            assert_same(numba.expand_frontiers(edges, nodes, settings, [0]), expected)


@pytest.mark.parametrize("prune", ["largest", "resample"])
def test_equal_hashes_are_ordered_by_number(prune):
    """Nodes with equal ids have equal hashes."""
    graph = star_graph(40)
    edges = _edges(graph, "sym")._replace(ids=torch.zeros(41, dtype=torch.int64))
    for max_entries in (None, 3):
        settings = settings_of(7, 4, prune, max_entries=max_entries if prune == "resample" or max_entries else 7)
        if prune == "resample" and max_entries:
            continue
        expected = reference.expand_frontiers(edges, torch.arange(41), settings, [0])
        assert_same(numba.expand_frontiers(edges, torch.arange(41), settings, [0]), expected)


@pytest.mark.parametrize("prune", ["largest", "resample"])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_ids_number_the_nodes(monkeypatch, prune, backend):
    """A graph whose nodes come in another order than their ids gives the same rows, to the bit."""
    monkeypatch.setenv("TOPOMASK_BACKEND", backend)
    graph = tm.Graph.batch([random_graph(3, 40, True), random_graph(3, 40, False)])
    order = np.concatenate([np.random.default_rng(0).permutation(40), 40 + np.random.default_rng(1).permutation(40)])
    moved = tm.Graph.from_scipy(graph.to_scipy()[order][:, order], directed=graph.directed, signed=True)
    edges, settings = _edges(graph, "row"), settings_of(5, 4, prune, "row", max_entries=None)
    settings = settings_of(5, 4, prune, "row")
    other = _edges(moved, "row")._replace(ids=edges.ids[order], values=None)
    # To the bit, degrees included.
    dense = torch.zeros(80, 80, dtype=torch.float64)
    dense[torch.repeat_interleave(torch.arange(80), edges.row_ptr.diff()), edges.columns] = edges.values
    rows = torch.repeat_interleave(torch.arange(80), other.row_ptr.diff())
    other = other._replace(values=dense[order[rows], order[other.columns]])
    expected = expand_frontiers(edges, torch.from_numpy(order), settings, [0])
    found = expand_frontiers(other, torch.arange(80), settings, [0])
    assert torch.equal(found.loads.row_ptr, expected.loads.row_ptr)
    for row in range(80):
        a, b = (
            {
                (int(name), int(length)): float(load)
                for pair in range(*part.row_ptr[row : row + 2])
                for name in [number[int(part.columns[pair])]]
                for length, load in zip(
                    part.lengths[slice(*part.entry_ptr[pair : pair + 2])],
                    part.loads[slice(*part.entry_ptr[pair : pair + 2])],
                    strict=True,
                )
            }
            for part, number in ((found.loads, order), (expected.loads, np.arange(80)))
        )
        assert a == b
        own = found.loads.columns[slice(*found.loads.row_ptr[row : row + 2])]
        assert (own.diff() > 0).all()
    if prune == "largest":
        assert torch.equal(found.bounds, expected.bounds)


def hash_words(*words: int) -> int:
    """In plain integers."""
    state = 0
    for word in words:
        state = ((state + 0x9E3779B97F4A7C15) % 2**64) ^ word
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            state = (state ^ (state >> shift)) * factor % 2**64
        state ^= state >> 31
    return state


def test_draws_and_ties_hash_what_they_are_for(monkeypatch):
    """Seed, head, ensemble, purpose, start id, node id or 0, and step; ties know no seed."""
    found = []

    def record(values, ties, count, draw):
        found.append((draw, ties.tolist()))
        return thin(values, ties, count, draw)

    monkeypatch.setattr(reference, "thin", record)
    edges = _edges(star_graph(9), "row")._replace(ids=torch.arange(100, 110))
    settings = settings_of(3, 2, "resample", "row", seed=7, ensemble=1)
    reference.expand_frontiers(edges, torch.tensor([4]), settings, [5])
    # From a leaf to the hub without a draw, and from there to three leaves.
    ties = [hash_words(0, 0, 0, 4, 100, node, 0) >> 1 for node in range(101, 110)]
    assert found == [((hash_words(7, 5, 1, 3, 104, 100, 2) >> 11) / 2**53, ties)]
    found.clear()
    path = _edges(tm.cycle_graph(9), "row")
    reference.expand_frontiers(path, torch.tensor([4]), settings_of(2, 2, "resample", "row", seed=7), [5])
    ties = [hash_words(0, 0, 0, 4, 4, node, 0) >> 1 for node in (2, 4, 6)]
    assert found == [((hash_words(7, 5, 0, 2, 4, 0, 2) >> 11) / 2**53, ties)]


def test_magnitudes_are_rounded_to_24_bits():
    x = np.array([1.0, -1.0, 1.0 + 2.0**-26, 1.0 + 2.0**-23, 0.5, 3.0, 1e-300, 1e308])
    found = magnitudes(x)
    assert found[0] == found[1] == found[2]
    assert (np.argsort(np.abs(x), kind="stable") == np.argsort(found, kind="stable")).all()
    assert found[3] == found[0] + 1


@pytest.mark.parametrize("euclidean", [True, False])
def test_hubs_are_cut_to_their_largest_neighbours(euclidean):
    """Against the definition, one node after the other."""
    graph = random_graph(8, 60, True)
    edges, width = _edges(graph, "row"), 4
    cut = cut_hubs(edges, width, euclidean)
    assert (np.diff(cut.row_ptr) <= width).all()
    assert (np.diff(edges.row_ptr) > width).any()
    for node in range(60):
        own, left = slice(*edges.row_ptr[node : node + 2]), slice(*cut.row_ptr[node : node + 2])
        columns, values = edges.columns[own].tolist(), edges.values[own].tolist()
        ties = tie_hashes(edges.ids[node], edges.ids[edges.columns[own]]).tolist()
        keys = sorted(zip([-m for m in magnitudes(np.array(values))], ties, columns, values, strict=True))
        assert sorted((c, v) for *_, c, v in keys[:width]) == list(
            zip(cut.columns[left], cut.values[left], strict=True)
        )
        rest = np.linalg.norm([v for *_, v in keys[width:]], 2 if euclidean else 1) if keys[width:] else 0.0
        assert cut.rest[node] == pytest.approx(rest, rel=1e-13)


def test_thinned_values_keep_their_sum_and_number():
    """Systematic draws: every number of entries of every sign is within one of its expectation."""
    rng = np.random.default_rng(2)
    for size, count in ((30, 7), (30, 1), (30, 29), (200, 50)):
        values = rng.normal(size=size) * rng.random(size) ** 3
        ties = rng.integers(0, 2**63 - 1, size)
        outcomes = np.array([thin(values, ties, count, draw) for draw in (np.arange(400) + 0.5) / 400])
        assert ((outcomes != 0).sum(axis=1) <= count).all()
        np.testing.assert_allclose(np.abs(outcomes).sum(axis=1), np.abs(values).sum(), rtol=1e-12)
        # Draws on a grid make means exact to the mesh of the grid.
        np.testing.assert_allclose(outcomes.mean(axis=0), values, atol=np.abs(values).sum() / count / 200)
        # Values above the threshold stay.
        stays = (outcomes == values).all(axis=0)
        assert np.abs(values[~stays]).max() <= np.abs(outcomes[:, ~stays]).max() * (1 + 1e-12)


@pytest.mark.parametrize("draw", [0.0, 0.5, 1.0 - 2.0**-53])
def test_thinning_extreme_numbers_leaves_no_more_than_asked_for(draw):
    for values in ([5e-324] * 9, [1e300] + [1e-300] * 5, [1.0] * 9, [0.1] * 10, [1e-310, 1e-320, 5e-324, 1e-300]):
        out = thin(np.array(values), np.arange(len(values)), 3, draw)
        assert (out != 0).sum() <= 3
        assert (out >= 0).all()


def test_bad_edges_are_named():
    edges = _edges(tm.grid_graph(3, 3), "sym")
    nodes = torch.arange(9)
    settings = settings_of(2, 2)
    for changes, message in (
        ({"columns": edges.columns + 1}, r"`columns` must lie in \[0, 9\)"),
        ({"row_ptr": edges.row_ptr + 1}, "`row_ptr`"),
        ({"columns": edges.columns.flip(0)}, "unique and ascending"),
        ({"values": edges.values.float()}, "float64"),
        ({"values": edges.values * float("nan")}, "finite"),
        ({"ids": edges.ids[:3]}, "an id"),
        ({"growth": edges.growth[:3]}, "a growth"),
    ):
        with pytest.raises(ValueError, match=message):
            expand_frontiers(Edges(**edges._asdict() | changes), nodes, settings, [0])
    with pytest.raises(ValueError, match="start_nodes"):
        expand_frontiers(edges, nodes + 1, settings, [0])
