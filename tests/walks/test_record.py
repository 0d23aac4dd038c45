import numpy as np
import pytest
import torch

import topomask as tm
from helpers.graphs import ragged_graph
from topomask.walks.record import WalkRecord, make_record

KIND = torch.device("cpu"), torch.float32


def records(graph: tm.Graph, symmetric: bool = True, **options) -> tuple[WalkRecord, WalkRecord]:
    """The record of walks on a graph, and that of the same walks as a selection, which is never dense."""
    query, key = (tm.sample_features(graph, seed=0, ensemble=side, **options) for side in ("query", "key"))
    key = key if symmetric else None
    return make_record(query, key, graph, *KIND), make_record(query, key, None, *KIND)


@pytest.mark.parametrize("symmetric", [True, False])
def test_few_nodes_are_counted_as_they_are_estimated(symmetric):
    small, other = records(tm.grid_graph(8, 8), symmetric, num_walks=200, max_length=9, num_heads=2)
    assert small.dense is not None
    assert other.dense is None
    assert small.counts.tiles is not None
    assert small.counts[:2] == other.counts[:2]
    assert small.counts.pairs == pytest.approx(other.counts.pairs, rel=0.01)
    # Keys are estimated in eights.
    assert small.counts.tiles.keys == pytest.approx(other.counts.tiles.keys, rel=0.05)


@pytest.mark.parametrize("symmetric", [True, False])
def test_pairs_of_few_nodes_are_all_that_there_are(symmetric):
    record, _ = records(ragged_graph(), symmetric, num_walks=4, max_length=3, num_heads=2)
    assert record.dense is not None
    assert record.counts.pairs == len(record.pairs().columns)
    # Rows are too short for tiles.
    assert record.counts.tiles is None


def test_where_queries_see_few_keys_the_order_of_rows_counts():
    """Tiles of neighbours: many more keys would be visited if rows came as they are."""
    nodes = torch.randperm(144, generator=torch.Generator().manual_seed(0))
    edges = nodes[torch.from_numpy(np.stack(tm.grid_graph(12, 12).to_scipy().nonzero())).long()]
    small, other = records(tm.Graph.from_edges(edges, 144), num_walks=20, max_length=2)
    assert small.dense is not None
    assert small.counts.pairs < 144 * 144 / 2
    assert small.counts.tiles.keys <= 1.1 * other.counts.tiles.keys


def test_one_node():
    record, _ = records(tm.path_graph(1), num_walks=2, max_length=2)
    assert record.counts == (2, 1, 1, None)
