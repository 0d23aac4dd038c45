import gc
import weakref

import pytest
import torch
from torch_geometric.nn import GCNConv, GraphConv

import topomask as tm
from helpers.graphs import directed_graph, ragged_batch, ragged_graph
from topomask.nn import graph_convolution


@pytest.mark.parametrize("make", [ragged_graph, ragged_batch, lambda: tm.path_graph(1)])
@pytest.mark.parametrize("aggregation", ["gcn", "sum"])
def test_is_the_layer_of_pyg(make, aggregation):
    torch.manual_seed(0)
    graph = make()
    edge_index, weights = graph.to_edge_index()
    ours = tm.nn.GraphConvolution(6, 4, aggregation).double()
    torch.nn.init.normal_(ours.bias)
    if aggregation == "gcn":
        theirs = GCNConv(6, 4).double()
        theirs.load_state_dict({"bias": ours.bias.detach(), "lin.weight": ours.linear.weight.detach()})
    else:
        theirs = GraphConv(6, 4).double()
        theirs.lin_rel.weight.data, theirs.lin_rel.bias.data = ours.linear.weight.data, ours.bias.data
        theirs.lin_root.weight.data = ours.root.weight.data
    x = torch.randn(graph.num_nodes, 6, dtype=torch.float64, requires_grad=True)
    found = [
        [out, *torch.autograd.grad(out.square().sum(), [x])] for out in (ours(x, graph), theirs(x, edge_index, weights))
    ]
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_on_a_directed_graph_a_node_hears_where_its_edges_lead():
    layer = tm.nn.GraphConvolution(1, 1, "sum")
    torch.nn.init.ones_(layer.linear.weight)
    torch.nn.init.zeros_(layer.root.weight)
    graph = tm.Graph.from_edges([[0], [1]], directed=True)
    torch.testing.assert_close(layer(torch.tensor([[1.0], [5.0]]), graph), torch.tensor([[5.0], [0.0]]))
    assert tm.nn.GraphConvolution(2, 2)(torch.ones(7, 2), directed_graph()).isfinite().all()


def test_the_matrix_is_made_once_and_goes_with_the_graph(monkeypatch):
    made, make = [], graph_convolution._NeighborSums.make
    monkeypatch.setattr(graph_convolution._NeighborSums, "make", lambda *args: made.append(1) or make(*args))
    graph = tm.cycle_graph(5)
    for _ in range(3):
        tm.nn.GraphConvolution(2, 2)(torch.ones(5, 2), graph)
    assert len(made) == 1
    gone = weakref.ref(graph)
    del graph
    gc.collect()
    assert gone() is None


def test_an_unknown_aggregation_is_refused():
    with pytest.raises(ValueError, match=r"`aggregation` must be one of \('gcn', 'sum'\), but is 'max'"):
        tm.nn.GraphConvolution(2, 2, "max")


def test_features_of_another_width_are_refused():
    fix = "Pass the features .* build the model .* in_features=3"
    with pytest.raises(ValueError, match=rf"in_features=2\], but has shape \(5, 3\)\. {fix}"):
        tm.nn.GraphConvolution(2, 2)(torch.ones(5, 3), tm.cycle_graph(5))


@pytest.mark.parametrize("shape", [(1, 2), (9, 2), (1, 5, 2)])
def test_tokens_of_other_nodes_are_refused(shape):
    with pytest.raises(
        ValueError, match=r"`x` must have shape \[num_nodes=5, in_features=2\], but has shape \(.*Pass one row per node"
    ):
        tm.nn.GraphConvolution(2, 2)(torch.ones(shape), tm.cycle_graph(5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("aggregation", ["gcn", "sum"])
def test_half_precision(aggregation, dtype):
    layer, graph = tm.nn.GraphConvolution(4, 4, aggregation), ragged_graph()
    x = torch.randn(graph.num_nodes, 4)
    expected = layer(x, graph)
    found = layer.to(dtype)(x.to(dtype).requires_grad_(), graph)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.05)
    found.sum().backward()
