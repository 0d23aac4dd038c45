import copy

import pytest
import torch
from torch_geometric.nn import GCNConv

import topomask as tm
from registry import ragged_graph, star_graph
from topomask.config import from_dict, to_dict
from topomask.models import GraphNetwork, GraphNetworkConfig
from topomask.nn import SparseRows

GRAPHS = [tm.path_graph(1), tm.Graph.from_edges([[], []], num_nodes=3), star_graph(9), tm.cycle_graph(5)]


@pytest.mark.parametrize("readout", ["node", "mean", "attention"])
@pytest.mark.parametrize("layer", ["gcn", "gat", "sgc", "gin"])
def test_a_batch_equals_one_by_one(layer, readout):
    torch.manual_seed(0)
    config = GraphNetworkConfig(3, 2, layer, dim=16, readout=readout, norm="batch", dropout=0.1)
    assert from_dict(GraphNetworkConfig, to_dict(config)) == config
    model = config.build().eval()
    inputs = [torch.randn(graph.num_nodes, 3) for graph in GRAPHS]
    batch = tm.Graph.batch(GRAPHS)
    out = model(torch.cat(inputs), batch, GRAPHS)
    assert out.shape == (batch.num_nodes if readout == "node" else 4, 2)
    expected = torch.cat([model(x, graph) for x, graph in zip(inputs, GRAPHS, strict=True)])
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(copy.deepcopy(model)(torch.cat(inputs), batch), out)


def test_gcn_is_the_published_one_on_a_weighted_graph():
    torch.manual_seed(0)
    model = GraphNetwork(3, 2, "gcn", dim=8)
    graph = ragged_graph()
    x = torch.randn(graph.num_nodes, 3)
    first, second = GCNConv(3, 8), GCNConv(8, 2)
    for theirs, ours in zip((first, second), model.network.convs, strict=True):
        theirs.load_state_dict(ours.state_dict())
    edge_index, weights = graph.to_edge_index()
    hidden = first(x, edge_index, weights.float()).relu()
    torch.testing.assert_close(model(x, graph), second(hidden, edge_index, weights.float()))


def test_sparse_features_are_encoded_or_made_dense():
    import scipy.sparse as sp

    x = torch.randn(5, 3).relu()
    rows = SparseRows.from_scipy(sp.csr_array(x.numpy()))
    for encoder in (False, True):
        model = GraphNetwork(3, 2, "gcn", dim=8, encoder=encoder)
        torch.testing.assert_close(model(rows, tm.cycle_graph(5)), model(x, tm.cycle_graph(5)))
    assert (model.encoder is not None) == encoder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": "sage"}, "`layer` must be one of"),
        ({"norm": "group"}, "`norm` must be one of"),
        ({"depth": 0}, "`depth` must be at least 1"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        GraphNetwork(3, 2, **options)
    with pytest.raises(ValueError, match="`num_classes` is None"):
        GraphNetworkConfig(3).build()
