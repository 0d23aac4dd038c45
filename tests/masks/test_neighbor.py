import copy

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.nn import GATConv, TransformerConv
from torch_geometric.utils import add_self_loops

import topomask as tm
from helpers.graphs import directed_graph, ragged_batch, ragged_graph, signed_graph, star_graph


@pytest.mark.parametrize("make", [ragged_graph, directed_graph, signed_graph, ragged_batch])
def test_is_the_adjacency_matrix_with_self_loops(make):
    graph = make()
    matrix = graph.to_scipy().toarray()
    loops = np.where(np.diag(np.diag(matrix)) == 0, np.eye(len(matrix)), 0.0)
    for weighted in (False, True):
        for self_loops in (False, True):
            mask = tm.NeighborMask(graph, weighted=weighted, self_loops=self_loops).double()
            entries = matrix if weighted else (matrix != 0).astype(float)
            expected = torch.from_numpy(entries + loops * self_loops)
            torch.testing.assert_close(mask.to_dense()[0], expected)
            torch.testing.assert_close(mask.magnitude().to_dense()[0], expected.abs())
            operator = mask.on()
            assert (operator.magnitude() is operator) == (not (weighted and graph.signed))


def transformer_conv(conv: TransformerConv, x: torch.Tensor, mask: tm.Mask) -> torch.Tensor:
    """A TransformerConv without root weight, as masked softmax attention."""
    layers = (conv.lin_query, conv.lin_key, conv.lin_value)
    q, k, v = (layer(x).unflatten(-1, (conv.heads, -1)).transpose(0, 1) for layer in layers)  # [H, N, D]
    return tm.masked_softmax_attention(q, k, v, mask).transpose(0, 1).flatten(1)


@pytest.mark.parametrize("strategy", ["pairs", "dense"])
@pytest.mark.parametrize("make", [ragged_graph, directed_graph])
def test_softmax_attention_is_pyg_transformer_conv(make, strategy, monkeypatch):
    """Outputs, and gradients in the input and in all weights. PyG's edges lead to the node that attends."""
    torch.manual_seed(0)
    edge_index, _ = make().to_edge_index()
    loops = edge_index[0] == edge_index[1]
    with_loops, _ = add_self_loops(edge_index[:, ~loops], num_nodes=make().num_nodes)
    graph = tm.Graph.from_edges(edge_index.flip(0), make().num_nodes, directed=True) if make().directed else make()
    conv = TransformerConv(6, 4, heads=3, root_weight=False).double()
    x = torch.randn(graph.num_nodes, 6, dtype=torch.float64, requires_grad=True)
    attend = tm.masked_softmax_attention
    monkeypatch.setattr(tm, "masked_softmax_attention", lambda *inputs: attend(*inputs, strategy=strategy))
    inputs = [x, *(p for name, p in conv.named_parameters() if "skip" not in name)]
    weight = torch.randn(graph.num_nodes, 12, dtype=torch.float64)
    outs = conv(x, with_loops), transformer_conv(conv, x, tm.NeighborMask(graph))
    found = [[out, *torch.autograd.grad((out * weight).sum(), inputs)] for out in outs]
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_direction_of_edges_matters():
    """The graph as it is gives another answer than PyG on a directed graph."""
    torch.manual_seed(0)
    graph = directed_graph()
    edge_index, _ = graph.to_edge_index()
    conv = TransformerConv(6, 4, root_weight=False)
    x = torch.randn(graph.num_nodes, 6)
    ours = transformer_conv(conv, x, tm.NeighborMask(graph, self_loops=False))
    assert not torch.allclose(ours, conv(x, edge_index), atol=1e-3)
    torch.testing.assert_close(ours, conv(x, edge_index.flip(0)))


def test_has_the_support_of_pyg_gat_conv():
    for graph in (ragged_graph(), ragged_batch()):
        edge_index, _ = graph.to_edge_index()
        _, (used, _) = GATConv(3, 2)(torch.randn(graph.num_nodes, 3), edge_index, return_attention_weights=True)
        source, target = used
        support = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.bool)
        support[target, source] = True
        assert torch.equal(tm.NeighborMask(graph).to_dense()[0] != 0, support)


@pytest.mark.parametrize("strategy", ["pairs", "product", "dense"])
def test_a_node_without_neighbours_attends_to_itself_or_to_nothing(strategy):
    graph = ragged_graph()
    q, k, v = torch.rand(3, 1, 1, 11, 4)
    alone = tm.masked_attention(q, k, v, tm.NeighborMask(graph), strategy=strategy)
    torch.testing.assert_close(alone[..., 4, :], v[..., 4, :])
    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    out = tm.masked_attention(q, k, v, tm.NeighborMask(graph, self_loops=False), strategy=strategy)
    assert (out[..., 4, :] == 0).all()
    for gradient in torch.autograd.grad(out[..., 4, :].sum(), [q, k, v]):
        assert (gradient == 0).all()


def test_there_is_nothing_to_learn_or_save():
    mask = tm.NeighborMask(ragged_graph(), weighted=True)
    assert not mask.state_dict()
    assert mask.on().cost().refresh == 0
    assert mask.to_dense().dtype == torch.float32
    assert mask.half().to_dense().dtype == torch.float32
    double = copy.deepcopy(mask).double()
    assert double.to_dense().dtype == torch.float64
    exact = torch.from_numpy(ragged_graph().to_scipy().toarray()).fill_diagonal_(1.0)
    exact[3, 3] = double.to_dense()[0, 3, 3]
    assert torch.equal(double.to_dense()[0], exact), "weights are not rounded on the way through half precision"
    assert tm.NeighborMask(ragged_graph()).on(tm.path_graph(3)).to_dense().shape == (1, 3, 3)
    assert tm.NeighborMask().on(tm.path_graph(3)).to_dense().shape == (1, 3, 3)
    with pytest.raises(ValueError, match="NeighborMask does not use walks"):
        mask.on(tm.path_graph(3), walks=tm.sample_features(tm.path_graph(3)))
    with pytest.raises(ValueError, match=r"must be a topomask\.Graph, but is a list"):
        tm.NeighborMask([tm.path_graph(3)])


def test_products_and_attention_take_the_precision_of_the_input():
    mask = tm.NeighborMask(star_graph(1000))
    ones = torch.full((1, 1001, 1), 60.0, dtype=torch.float16)
    assert (mask @ ones)[0, 0] == 60 * 1001, "a sum in half precision would stop growing"
    third = torch.full((1, 1001, 1), 1 / 3, dtype=torch.float64)
    torch.testing.assert_close((mask @ third)[0, 0], torch.tensor([1001 / 3], dtype=torch.float64), rtol=1e-14, atol=0)


def test_graphs_with_many_neighbours_are_taken_in_tiles():
    rng = np.random.default_rng(0)
    matrix = sp.csr_array(np.triu(rng.random((100, 100)) < 0.4, 1).astype(float))
    mask = tm.NeighborMask(tm.Graph.from_scipy(matrix + matrix.T))
    assert mask.on().cost().tiles is not None
    assert tm.NeighborMask(tm.grid_graph(10, 10)).on().cost().tiles is None
    q, k, v = torch.randn(3, 2, 3, 100, 8)
    for attend in (tm.masked_attention, tm.masked_softmax_attention):
        out, expected = (attend(q, k, v, mask, strategy=s) for s in ("pairs", "dense"))
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


def test_linear_in_the_number_of_edges():
    """A star of 2^17 leaves: one row of 131,073 entries, and 69 GB if it were dense."""
    mask = tm.NeighborMask(star_graph(2**17))
    cost = mask.on().cost()
    assert cost.max_pairs == cost.pairs == cost.product == 3 * 2**17 + 1
    q, k, v = torch.randn(3, 1, 1, 2**17 + 1, 4)
    out = tm.masked_softmax_attention(q, k, v, mask)
    whole = torch.softmax(q[0, 0, :1] @ k[0, 0].mT / 2, dim=-1) @ v[0, 0]
    torch.testing.assert_close(out[0, 0, :1], whole, rtol=1e-4, atol=1e-5)
