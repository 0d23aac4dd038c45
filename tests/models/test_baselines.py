import copy

import pytest
import torch
from torch_geometric.nn import GCNConv

import topomask as tm
from helpers.graphs import ragged_graph, star_graph
from topomask.models import GraphNetwork, GraphNetworkConfig
from topomask.nn import SparseRows
from topomask.support.config import from_dict, to_dict

GRAPHS = [tm.path_graph(1), tm.Graph.from_edges([[], []], num_nodes=3), star_graph(9), tm.cycle_graph(5)]


NETWORKS = {
    "gcn": {"norm": "batch", "dropout": 0.1},
    "gcn, layer norm": {"norm": "layer", "dropout": 0.1},
    "gat": {"norm": "batch", "dropout": 0.1},
    "sgc": {},
    "gin": {"norm": "batch", "dropout": 0.1},
    "gin, layer norm": {"norm": "layer"},
    "gcn, residual": {"norm": "layer", "residual": True, "dropout": 0.1},
    "gat, residual": {"norm": "layer", "residual": True, "dropout": 0.1},
}


@pytest.mark.parametrize("readout", ["node", "mean", "sum", "attention"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_batch_equals_one_by_one(name, readout):
    torch.manual_seed(0)
    config = GraphNetworkConfig(3, 2, name[:3], dim=16, readout=readout, **NETWORKS[name])
    assert from_dict(GraphNetworkConfig, to_dict(config)) == config
    model = config.build().eval()
    inputs = [torch.randn(graph.num_nodes, 3) for graph in GRAPHS]
    batch = tm.Graph.batch(GRAPHS)
    out = model(torch.cat(inputs), batch)
    assert out.shape == (batch.num_nodes if readout == "node" else 4, 2)
    expected = torch.cat([model(x, graph) for x, graph in zip(inputs, GRAPHS, strict=True)])
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(copy.deepcopy(model)(torch.cat(inputs), batch), out)


@pytest.mark.parametrize("readout", ["node", "mean", "sum", "attention"])
@pytest.mark.parametrize("layer", ["gcn", "gat"])
def test_a_residual_network_learns_with_all_it_has_and_sees_its_own_graph_alone(layer, readout):
    torch.manual_seed(0)
    model = GraphNetwork(3, 2, layer, dim=16, depth=3, readout=readout, norm="layer", residual=True)
    graphs = [tm.cycle_graph(5), star_graph(9)]
    batch, x = tm.Graph.batch(graphs), torch.randn(5 + graphs[1].num_nodes, 3)
    x.requires_grad_()
    out = model(x, batch)
    assert out.shape == (batch.num_nodes if readout == "node" else 2, 2)
    first = out[: 5 if readout == "node" else 1]
    (slope,) = torch.autograd.grad(first.square().sum(), x, retain_graph=True)
    assert slope[:5].abs().sum(dim=1).gt(0).all()
    assert slope[5:].eq(0).all()
    out.square().sum().backward()
    missing = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    # A constant in front of a softmax does not count.
    assert missing == (["readout.score.bias"] if missing else [])


def test_a_residual_gcn_has_no_heads():
    assert GraphNetwork(3, 2, "gcn", dim=12, num_heads=8, norm="layer", residual=True)(
        torch.randn(5, 3), tm.cycle_graph(5)
    ).shape == (5, 2)
    with pytest.raises(ValueError, match="`dim` must be a multiple of `num_heads`=8, but is 12"):
        GraphNetwork(3, 2, "gat", dim=12, num_heads=8, norm="layer", residual=True)


@pytest.mark.parametrize("layer", ["gcn", "gat", "sgc", "gin"])
def test_on_a_directed_graph_a_node_hears_where_its_edges_lead(layer):
    torch.manual_seed(0)
    graph = tm.Graph.from_edges([[0], [1]], directed=True)
    model = GraphNetwork(3, 32, layer, depth=1).eval()
    x = torch.randn(2, 3)
    changed = model(x + torch.tensor([[0.0], [1.0]]), graph) != model(x, graph)
    assert changed.any(dim=1).tolist() == [True, True]
    changed = model(x + torch.tensor([[1.0], [0.0]]), graph) != model(x, graph)
    assert changed.any(dim=1).tolist() == [True, False]


@pytest.mark.parametrize("layer", ["gat", "gin"])
def test_weights_are_refused_where_they_would_be_ignored(layer):
    graph = ragged_graph()
    with pytest.raises(ValueError, match=f"`graph` has weights, which layer '{layer}' does not use. Use one of"):
        GraphNetwork(3, 2, layer, dim=8)(torch.randn(graph.num_nodes, 3), graph)


@pytest.mark.parametrize("name", NETWORKS)
def test_looking_at_a_graph_first_does_not_stop_training_on_it(name):
    model, graph = GraphNetwork(3, 2, name[:3], dim=16, **NETWORKS[name]), tm.Graph.batch(GRAPHS)
    x = torch.randn(graph.num_nodes, 3)
    with torch.inference_mode():
        model(x, graph)
    model(x, graph).sum().backward()


@pytest.mark.parametrize("name", NETWORKS)
def test_all_precisions(name):
    torch.manual_seed(0)
    model, graph = GraphNetwork(3, 2, name[:3], dim=16, **NETWORKS[name]).eval(), tm.Graph.batch(GRAPHS)
    x = torch.randn(graph.num_nodes, 3)
    expected = model(x, graph).detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = model(x, graph)
    mixed.float().sum().backward()
    double = copy.deepcopy(model).double()(x.double(), graph)
    half = model.bfloat16()(x.bfloat16(), graph)
    assert (double.dtype, half.dtype) == (torch.float64, torch.bfloat16)
    torch.testing.assert_close(double.float(), expected)
    for rough in (mixed, half):
        torch.testing.assert_close(rough.float(), expected, rtol=0.1, atol=0.05 * expected.abs().max().item())


@pytest.mark.parametrize("layer", ["gcn", "sgc"])
def test_negative_weights_are_refused(layer):
    graph = tm.Graph.from_edges([[0, 1], [1, 2]], weights=[1.0, -2.0], signed=True)
    with pytest.raises(ValueError, match=f"`graph` has negative weights, but layer '{layer}' takes square roots"):
        GraphNetwork(3, 2, layer, dim=8)(torch.randn(3, 3), graph)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("directed", [False, True])
def test_gcn_is_the_published_one_on_a_weighted_graph(directed, dtype):
    torch.manual_seed(0)
    model = GraphNetwork(3, 2, "gcn", dim=8).to(dtype)
    edges = [[0, 1, 2, 4, 3], [1, 2, 0, 4, 1]]  # With a loop, and a node alone.
    graph = tm.Graph.from_edges(edges, weights=torch.rand(5) + 0.5, num_nodes=6, directed=directed)
    x = torch.randn(graph.num_nodes, 3, dtype=dtype, requires_grad=True)
    first, second = GCNConv(3, 8).to(dtype), GCNConv(8, 2).to(dtype)
    for theirs, ours in zip((first, second), model.network.convs, strict=True):
        theirs.load_state_dict(ours.state_dict())
    edge_index, weights = graph.to_edge_index()
    # PyG sends messages from the first row to the second.
    edge_index, weights = edge_index.flip(0), weights.to(dtype)
    out, expected = model(x, graph), second(first(x, edge_index, weights).relu(), edge_index, weights)
    torch.testing.assert_close(out, expected)
    slopes = (torch.autograd.grad(each.square().sum(), x)[0] for each in (out, expected))
    torch.testing.assert_close(*slopes)


def test_sparse_features_are_encoded_or_made_dense():
    import scipy.sparse as sp

    x = torch.randn(5, 3).relu()
    rows = SparseRows.from_scipy(sp.csr_array(x.numpy()))
    for encoder in (False, True):
        model = GraphNetwork(3, 2, "gcn", dim=8, encoder=encoder)
        torch.testing.assert_close(model(rows, tm.cycle_graph(5)), model(x, tm.cycle_graph(5)))
        model.double()
        torch.testing.assert_close(model(rows, tm.cycle_graph(5)), model(x.double(), tm.cycle_graph(5)))
    assert (model.encoder is not None) == encoder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": "sage"}, "`layer` must be one of"),
        ({"norm": "group"}, "`norm` must be one of"),
        ({"depth": 0}, "`depth` must be at least 1"),
        ({"dropout": 1.0}, r"`dropout` must lie in \[0, 1\), but is 1.0"),
        (
            {"layer": "sgc", "norm": "batch"},
            "`norm` is 'batch', but layer 'sgc' is one linear layer",
        ),
        (
            {"layer": "sgc", "dropout": 0.9},
            "`dropout` is 0.9, but layer 'sgc' .* use `input_dropout`",
        ),
        ({"layer": "gcn", "depth": 1, "norm": "batch"}, "`norm` is 'batch', but `depth` is 1"),
        ({"layer": "gin", "depth": 1, "dropout": 0.9}, "`dropout` is 0.9, but `depth` is 1"),
        ({"layer": "gin", "norm": "layer", "residual": True}, "`residual` is for layers 'gcn' and 'gat'"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        GraphNetwork(3, 2, **options)
    with pytest.raises(ValueError, match="`num_classes` is None"):
        GraphNetworkConfig(3).build()
    assert GraphNetwork(3, 2, "gin", depth=1, norm="batch", dim=8)(torch.randn(5, 3), tm.cycle_graph(5)).shape == (5, 2)
