import copy
import gc
import importlib
import sys
import weakref

import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv, GPSConv

import topomask as tm
from helpers.graphs import ragged_graph
from topomask.integrations import pyg
from topomask.integrations.pyg import MaskedGPSConv
from topomask.walks.recipe import WalkRecipe


def data(graph: tm.Graph, width: int = 8) -> Data:
    edge_index, _ = graph.to_edge_index()
    return Data(x=torch.randn(graph.num_nodes, width), edge_index=edge_index, num_nodes=graph.num_nodes)


def layer(mask: tm.Mask, **options) -> torch.nn.Module:
    torch.manual_seed(1)
    return MaskedGPSConv(8, GCNConv(8, 8), mask, heads=2, **options)


def walk_mask(**options) -> tm.Mask:
    return tm.WalkMask(None, num_walks=8, max_length=3, num_heads=2, symmetric=False, seed=0, **options)


@pytest.mark.parametrize("kind", ["linear", "softmax"])
def test_the_output_changes_with_the_mask(kind):
    """PyG's own layer leaves out an attention that it does not know, so there the mask has no effect."""
    torch.manual_seed(0)
    given = data(tm.grid_graph(3, 4))
    masks = [tm.AllPairsMask(), tm.NeighborMask(), walk_mask()]
    outs = [layer(mask, kind=kind)(given.x, given.edge_index) for mask in masks]
    for k in range(3):
        assert not torch.allclose(outs[k], outs[k - 1], atol=1e-3)
    skipping = []
    for mask in masks:
        torch.manual_seed(1)
        plain = GPSConv(8, GCNConv(8, 8), heads=2)
        plain.attn = tm.nn.MaskedAttention(8, 2, mask)
        plain.load_state_dict(layer(masks[0]).state_dict(), strict=False)
        skipping.append(plain(given.x, given.edge_index))
    assert torch.equal(skipping[0], skipping[1])


def test_without_a_mask_it_is_the_layer_of_pyg():
    torch.manual_seed(0)
    batch = Batch.from_data_list([data(tm.grid_graph(3, 4)), data(tm.cycle_graph(5)), data(tm.path_graph(1))])
    ours = layer(tm.AllPairsMask(), kind="softmax", norm="graph_norm").eval()
    theirs = GPSConv(8, GCNConv(8, 8), heads=2, norm="graph_norm").eval()
    theirs.load_state_dict({k: v for k, v in ours.state_dict().items() if not k.startswith("attn")}, strict=False)
    projections = [ours.attn.query, ours.attn.key, ours.attn.value]
    theirs.attn.in_proj_weight.data = torch.cat([linear.weight for linear in projections])
    theirs.attn.in_proj_bias.data = torch.cat([linear.bias for linear in projections])
    theirs.attn.out_proj.load_state_dict(ours.attn.out.state_dict())
    out = ours(batch.x, batch.edge_index, batch.batch)
    torch.testing.assert_close(out, theirs(batch.x, batch.edge_index, batch.batch), rtol=1e-4, atol=1e-5)


def test_a_batch_equals_one_by_one():
    torch.manual_seed(0)
    graphs = [ragged_graph(), tm.path_graph(1), tm.cycle_graph(5)]
    parts = [data(graph) for graph in graphs]
    batch = Batch.from_data_list(parts)
    given = layer(walk_mask()).eval()
    expected = torch.cat([given(part.x, part.edge_index) for part in parts])
    torch.testing.assert_close(given(batch.x, batch.edge_index, batch.batch), expected)
    graph = tm.Graph.batch([tm.Graph.from_pyg(part) for part in parts])
    walks = given.attn.mask.sample(graph)
    torch.testing.assert_close(given(batch.x, batch.edge_index, graph=graph, walks=walks), expected)


def test_gradients_reach_the_mask_and_weights_can_be_drawn_anew():
    torch.manual_seed(0)
    given, graph = layer(walk_mask(f=torch.tensor([1.0, -0.5, 0.2, 0.1]))), data(tm.grid_graph(3, 4))
    given(graph.x, graph.edge_index).square().sum().backward()
    assert (given.attn.mask.modulation.weight.grad != 0).all()
    before = {name: value.clone() for name, value in given.named_parameters()}
    given.reset_parameters()
    changed = {name for name, value in given.named_parameters() if not torch.equal(value, before[name])}
    assert {"conv.lin.weight", "attn.query.weight", "attn.out.weight", "mlp.0.weight"} <= changed
    assert not any(name.startswith("attn.mask") for name in changed)


@pytest.fixture
def sampled(monkeypatch):
    """The graphs that walks are sampled on."""
    found, sample = [], WalkRecipe.sample
    monkeypatch.setattr(WalkRecipe, "sample", lambda self, graph: found.append(graph) or sample(self, graph))
    return found


def test_walks_are_sampled_once_for_edges_that_come_again(sampled):
    torch.manual_seed(0)
    first, second = data(tm.grid_graph(3, 4)), data(tm.cycle_graph(5))
    layers = [layer(walk_mask()).eval() for _ in range(2)]
    sampled.clear()
    outs = [[each(given.x, given.edge_index) for each in layers] for given in [first, second] * 3]
    # Once per graph: layers share it, and masks of one recipe share its walks.
    assert len(sampled) == len(set(sampled)) == 2
    for k in (2, 4):
        assert torch.equal(outs[k][0], outs[0][0])
        assert torch.equal(outs[k + 1][0], outs[1][0])


def test_layers_that_share_a_mask_share_its_walks(sampled):
    torch.manual_seed(0)
    given, mask = data(tm.grid_graph(3, 4)), walk_mask()
    model = torch.nn.ModuleList(layer(mask) for _ in range(3)).eval()
    others = [layer(walk_mask()).eval() for _ in range(3)]
    sampled.clear()
    expected = [each(given.x, given.edge_index) for each in others]
    for ours, theirs in zip(model, expected, strict=True):
        assert torch.equal(ours(given.x, given.edge_index), theirs)
    assert len(sampled) == 1
    copied = copy.deepcopy(model)
    assert torch.equal(copied[2](given.x, given.edge_index), expected[2])
    assert len({id(each.attn.mask) for each in copied}) == 1
    assert copied[0].attn.mask is not mask
    assert len(sampled) == 1
    assert model.double()[1](given.x.double(), given.edge_index).dtype == torch.float64
    seen = weakref.ref(mask)
    gc.collect()
    gc.disable()
    try:
        del model, mask, ours
        assert seen() is None, "held until the collector runs"
    finally:
        gc.enable()


def test_masks_that_do_not_fit_are_named():
    with pytest.raises(
        ValueError, match=r"`mask` must be a topomask.Mask, but is a str. Pass, for example, WalkMask\(symmetric=False"
    ):
        layer("walk")
    with pytest.raises(ValueError, match="`mask` is a ToeplitzMask, which does not work on the graph of every call"):
        layer(tm.ToeplitzMask(3))


def test_edges_that_change_make_another_graph():
    torch.manual_seed(0)
    given, other = data(tm.grid_graph(3, 4)), data(tm.grid_graph(4, 3))
    attending = layer(walk_mask()).eval()
    attending(given.x, given.edge_index)
    expected = layer(walk_mask()).eval()(given.x, other.edge_index)
    # Written to where PyTorch does not see it.
    given.edge_index.numpy()[:] = other.edge_index.numpy()
    assert torch.equal(attending(given.x, given.edge_index), expected)
    batch = torch.tensor([0] * 6 + [1] * 6)
    with pytest.raises(ValueError, match="joins two graphs of the batch"):
        attending(given.x, given.edge_index, batch)
    with torch.inference_mode():
        attending(given.x, given.edge_index)
    attending.double()(given.x.double(), given.edge_index).sum().backward()


def test_a_graph_goes_with_its_edges():
    given = data(tm.cycle_graph(5))
    attending = layer(walk_mask())
    attending(given.x, given.edge_index)
    gone = weakref.ref(pyg._graph(given.edge_index, None, None, 5))
    del given
    other = data(tm.cycle_graph(4))
    attending(other.x, other.edge_index)
    gc.collect()
    assert gone() is None


def test_weights_of_edges_reach_the_mask():
    torch.manual_seed(0)
    given = data(tm.cycle_graph(6))
    weights = torch.tensor([0.1, 1.0, 3.0, 0.2, 2.0, 0.5])
    source, target = given.edge_index
    edge_weight = weights[source] * weights[target]
    mask = tm.PowerSeriesMask(None, torch.tensor([1.0, 0.5]))
    attending = MaskedGPSConv(8, None, mask, heads=2).eval()
    plain, found = attending(given.x, given.edge_index), attending(given.x, given.edge_index, edge_weight=edge_weight)
    assert not torch.allclose(plain, found, atol=1e-3)
    graph = tm.Graph.from_pyg(Data(edge_index=given.edge_index, num_nodes=6, edge_weight=edge_weight))
    torch.testing.assert_close(attending(given.x, given.edge_index, graph=graph), found)
    with pytest.raises(ValueError, match="`edge_weight` requires gradients, which a mask cannot give"):
        layer(walk_mask())(given.x, given.edge_index, edge_weight=edge_weight.clone().requires_grad_())


def test_edges_that_a_mask_cannot_live_on_ask_for_a_graph():
    given = data(tm.path_graph(3))
    for weights in (torch.arange(1.0, 5.0), -torch.ones(4)):
        with pytest.raises(
            ValueError, match=r"Cannot build a graph from these edges: .* no such option: .* and pass it as `graph`"
        ):
            layer(walk_mask())(given.x, given.edge_index, edge_weight=weights)


def test_options_that_would_be_thrown_away_are_refused():
    with pytest.raises(ValueError, match=r"has no option `attn_type`. .*attention is set by `mask`, `kind`"):
        layer(walk_mask(), attn_type="performer")
    assert layer(walk_mask(), norm=None, act="elu").norm1 is None
    given = data(tm.path_graph(3))
    alone = MaskedGPSConv(8, None, walk_mask(), heads=2)
    with pytest.raises(ValueError, match=r"\['edge_wieght'\] are arguments of the local layer, but `conv` is None"):
        alone(given.x, given.edge_index, edge_weight=torch.ones(4), edge_attr=None, edge_wieght=torch.ones(4))
    with pytest.raises(ValueError, match="`channels` must be a multiple of `heads`, but they are 7 and 2"):
        MaskedGPSConv(7, None, walk_mask(), heads=2)


def test_nodes_out_of_order_are_refused():
    given = data(tm.path_graph(3))
    for batch in (torch.tensor([0, 1, 0]), torch.tensor([0]), torch.zeros(4).long(), torch.zeros(3)):
        with pytest.raises(ValueError, match="`batch` must be the graph of each of the 3 nodes as ascending"):
            layer(walk_mask())(given.x, given.edge_index, batch)


@pytest.mark.parametrize("norm", ["graph_norm", "instance_norm", "layer_norm", "batch_norm"])
def test_norms_keep_to_the_graphs_of_a_given_graph(norm):
    torch.manual_seed(0)
    parts = [data(tm.grid_graph(3, 4)), data(tm.cycle_graph(5))]
    batch, graph = Batch.from_data_list(parts), tm.Graph.batch([tm.grid_graph(3, 4), tm.cycle_graph(5)])
    given = layer(walk_mask(), norm=norm).eval()
    expected = torch.cat([given(part.x, part.edge_index) for part in parts])
    found = given(batch.x, batch.edge_index, graph=graph)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(given(batch.x, batch.edge_index, batch.batch, graph=graph), found)


def test_a_graph_that_does_not_fit_is_refused():
    given, conv = data(tm.path_graph(3)), layer(walk_mask())
    for graph, batch, message in (
        (given, None, "`graph` must be a topomask.Graph, but is a Data. Use Graph.from_pyg"),
        (tm.path_graph(4), None, "`graph` must have the 3 nodes of `x`, but has 4"),
        (tm.path_graph(3), torch.tensor([0, 0, 1]), "`batch` does not match the graphs of the nodes in `graph`"),
    ):
        with pytest.raises(ValueError, match=message):
            conv(given.x, given.edge_index, batch, graph=graph)
    with pytest.raises(
        ValueError, match=r"`edge_index` must be a dense tensor \[2, E\] unless `graph` is given, but has layout"
    ):
        conv(given.x, torch.eye(3).to_sparse())


def test_directed_edges_are_seen_as_the_local_layer_hears_them():
    x, edge_index = torch.eye(2, 8), torch.tensor([[0], [1]])
    graph = tm.Graph.from_edges(edge_index.flip(0), 2, directed=True)
    mask = tm.NeighborMask().on(graph).to_dense()
    heard = GCNConv(8, 8, normalize=False, bias=False)
    heard.lin.weight.data = torch.eye(8)
    # Node 1 hears node 0, and not the other way.
    assert torch.equal(heard(x, edge_index)[1], x[0])
    assert mask[0, 1, 0] > 0 == mask[0, 0, 1]


class _Refuse:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "torch_geometric":
            raise ModuleNotFoundError("No module named 'torch_geometric'", name="torch_geometric")


def test_without_pyg_the_extra_is_named_and_the_rest_can_be_used(monkeypatch):
    for name in [
        name
        for name in sys.modules
        if name.partition(".")[0] == "torch_geometric" or name == "topomask.integrations.pyg"
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_Refuse(), *sys.meta_path])
    assert tm.models.GraphTransformer(2, 2, local="gcn")(torch.ones(3, 2), tm.path_graph(3)).shape == (3, 2)
    for use in (lambda: importlib.import_module("topomask.integrations.pyg"), lambda: tm.models.GraphNetwork(2, 2)):
        with pytest.raises(
            ModuleNotFoundError, match=r"needs PyG, which is not installed.*pip install 'topomask\[pyg\]'"
        ):
            use()
