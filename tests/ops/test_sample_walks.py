"""The compiled sampler gives the bits of the reference."""

import numpy as np
import pytest
import torch

import topomask as tm
from helpers.graphs import directed_graph, ragged_batch, ragged_graph, signed_graph, star_graph
from topomask.ops.sample_walks import WalkSettings, numba, reference

GRAPHS = {
    "ragged": (ragged_graph, ("sym", "row", "none")),
    "directed": (directed_graph, ("row", "none")),
    "signed": (signed_graph, ("sym", "row", "none")),
    "batch": (ragged_batch, ("sym",)),
    "star": (lambda: star_graph(63), ("sym", "row")),
    "grid": (lambda: tm.grid_graph(9, 11), ("sym",)),
    "lists": (lambda: tm.knn_graph(np.random.default_rng(0).random((100, 3)), 3, directed=True), ("row",)),
    "no edges": (lambda: tm.Graph.from_edges([], 3), ("sym",)),
    "one node": (lambda: tm.path_graph(1), ("sym",)),
}
COUPLINGS = [("repelling", 0.0), ("repelling", 0.3), ("antithetic", 0.3), ("iid", 0.3), ("iid", 0.0)]


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize(("coupling", "halt_prob"), COUPLINGS)
def test_same_bits_as_the_reference(name, coupling, halt_prob):
    make, normalizations = GRAPHS[name]
    graph = make()
    for normalization in normalizations:
        for num_walks, max_length in ((1, 1), (7, 4), (70, 3), (5, 0)):
            settings = WalkSettings(num_walks, max_length, halt_prob, coupling, normalization, 11, 1)
            nodes = torch.arange(graph.num_nodes)
            for start_nodes in (nodes, nodes.flip(0)[:5], nodes[:0]):
                expected_walks = reference.random_walks(graph._tensors, start_nodes, settings, 2)
                assert torch.equal(numba.random_walks(graph._tensors, start_nodes, settings, 2), expected_walks)
                expected = reference.sample_walks(graph._tensors, start_nodes, settings, [2, 0], torch.float64)
                found = numba.sample_walks(graph._tensors, start_nodes, settings, [2, 0], torch.float64)
                assert_same(found, expected)


def assert_same(found, expected):
    for part in expected._fields:
        a, b = getattr(found, part), getattr(expected, part)
        assert a.dtype == b.dtype, part
        assert torch.equal(a, b), part


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_chunks_and_threads_do_not_matter(monkeypatch, threads):
    """More rows than a block has at least, so that every thread gets some."""
    graph = tm.Graph.batch([ragged_batch(), tm.grid_graph(10, 13), signed_graph()])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for capacity in (1 << 23, 20 * 13):
            monkeypatch.setattr(numba, "_ENTRIES_PER_CHUNK", capacity)
            for coupling, halt_prob in COUPLINGS:
                settings = WalkSettings(4, 3, halt_prob, coupling, "sym", 3, 0)
                nodes = torch.arange(graph.num_nodes)
                expected = reference.sample_walks(graph._tensors, nodes, settings, [0], torch.float32)
                assert_same(numba.sample_walks(graph._tensors, nodes, settings, [0], torch.float32), expected)
                walks = reference.random_walks(graph._tensors, nodes, settings, 0)
                assert torch.equal(numba.random_walks(graph._tensors, nodes, settings, 0), walks)
    finally:
        torch.set_num_threads(before)


def test_nodes_far_apart_and_long_walks():
    """Bit sets of more than one word at the top, and lengths that need more than a byte."""
    num_nodes = 600_000
    rng = np.random.default_rng(1)
    graph = tm.Graph.from_edges(rng.integers(0, num_nodes, (2, 2 * num_nodes)), num_nodes)
    nodes = torch.from_numpy(rng.integers(0, num_nodes, 40))
    for length, dtype in ((12, torch.uint8), (300, torch.int16)):
        settings = WalkSettings(3, length, 0.0, "repelling", "sym", 0, 0)
        expected = reference.sample_walks(graph._tensors, nodes, settings, [0], torch.float32)
        assert expected.lengths.dtype == dtype
        assert expected.columns.dtype == torch.int32
        assert_same(numba.sample_walks(graph._tensors, nodes, settings, [0], torch.float32), expected)


def test_loads_are_rounded_once():
    graph = ragged_graph()
    settings = WalkSettings(7, 5, 0.1, "iid", "sym", 0, 0)
    nodes = torch.arange(graph.num_nodes)
    fine, coarse = (numba.sample_walks(graph._tensors, nodes, settings, [0], d) for d in (torch.float64, torch.float32))
    assert torch.equal(fine.loads.to(torch.float32), coarse.loads)
