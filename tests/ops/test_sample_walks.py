"""The compiled sampler gives the bits of the reference."""

import numpy as np
import pytest
import torch

import topomask as tm
from registry import directed_graph, ragged_batch, ragged_graph, signed_graph, star_graph
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
                expected_walks = reference.random_walks(graph.tensors, start_nodes, settings, 2)
                assert torch.equal(numba.random_walks(graph.tensors, start_nodes, settings, 2), expected_walks)
                expected = reference.sample_walks(graph.tensors, start_nodes, settings, 2, torch.float64)
                found = numba.sample_walks(graph.tensors, start_nodes, settings, 2, torch.float64)
                for part in expected._fields:
                    a, b = getattr(found, part), getattr(expected, part)
                    assert a.dtype == b.dtype, part
                    assert torch.equal(a, b), part


def test_chunks_and_threads_do_not_matter(monkeypatch):
    graph = ragged_batch()
    whole = tm.sample_features(graph, num_walks=4, max_length=3).fingerprint
    monkeypatch.setattr(numba, "_ENTRIES_PER_CHUNK", 13 * 5)
    assert tm.sample_features(graph, num_walks=4, max_length=3).fingerprint == whole
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            assert tm.sample_features(graph, num_walks=4, max_length=3).fingerprint == whole
    finally:
        torch.set_num_threads(before)
