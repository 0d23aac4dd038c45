import copy
import dataclasses
import gc
import pickle
import weakref

import pytest
import torch

import topomask as tm
from helpers.graphs import directed_graph, ragged_graph, star_graph
from topomask.models import GraphMaskOptions, GraphTransformer, GraphTransformerConfig
from topomask.models.graph_masks import GRAPH_MASKS
from topomask.models.graph_transformer import PRESETS
from topomask.nn import SparseRows
from topomask.support.config import from_dict, to_dict
from topomask.walks.recipe import WalkRecipe

# Without attention there is one kind.
KINDS = [(mask, kind) for mask in GRAPH_MASKS for kind in ("linear", "softmax") if (mask, kind) != ("none", "softmax")]

# One node, no edges, two components, a hub.
GRAPHS = [
    tm.path_graph(1),
    tm.Graph.from_edges([[], []], num_nodes=3),
    ragged_graph(),
    star_graph(9),
    tm.cycle_graph(5),
]


def make(**options) -> GraphTransformer:
    torch.manual_seed(0)
    options = {"dim": 8, "depth": 2, "num_heads": 2, "readout": "mean"} | options
    return GraphTransformer(3, 2, **options).double()


def features(graph: tm.Graph, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(graph.num_nodes, 3, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("readout", ["node", "mean", "sum", "attention"])
@pytest.mark.parametrize(("mask", "kind"), KINDS)
def test_a_batch_equals_one_by_one(mask, kind, readout):
    model = make(mask=mask, kind=kind, readout=readout, local="gcn" if readout == "sum" else "none").eval()
    inputs = [features(graph, number) for number, graph in enumerate(GRAPHS)]
    expected = torch.cat([model(x, graph) for x, graph in zip(inputs, GRAPHS, strict=True)])
    batch = tm.Graph.batch(GRAPHS)
    assert expected.shape == (batch.num_nodes if readout == "node" else len(GRAPHS), 2)
    assert expected.isfinite().all()
    torch.testing.assert_close(model(torch.cat(inputs), batch), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_learns(name):
    """Paths and stars, with the degree as input: even a model without the graph can tell."""
    torch.manual_seed(0)
    graphs = [g for n in (7, 8, 9) for g in (tm.path_graph(n + 1), star_graph(n))]
    batch, labels = tm.Graph.batch(graphs), torch.tensor([0, 1]).repeat(3)
    config = GraphTransformerConfig.preset(name, in_features=1, num_classes=2, dim=16, num_heads=2, readout="mean")
    assert from_dict(GraphTransformerConfig, to_dict(config)) == config
    model = config.build()
    x = torch.tensor(batch.degrees).float()[:, None].log1p()
    optimizer = torch.optim.Adam(model.parameters(), 0.005)
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x, batch), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    # A guess has 0.69.
    assert min(losses) < 0.4
    of_masks = [p for name, p in model.named_parameters() if "modulation" in name or "log_time" in name]
    assert all((p.grad is not None) == (name != "gkat") for p in of_masks)


def test_gkat_has_the_kernel_of_its_authors():
    """Independent walks, counted alike at every step for good, and one kernel for all heads."""
    config = GraphTransformerConfig.preset("gkat", in_features=3, num_classes=2, dim=8, num_heads=2)
    model = config.build().double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    graph = tm.cycle_graph(5)
    model(features(graph), graph).square().sum().backward()
    optimizer.step()
    for block in model.blocks:
        mask = block.attention.mask
        assert isinstance(mask, tm.VisitMask)
        assert (mask.recipe.num_walks, mask.recipe.max_length, mask.recipe.coupling) == (50, 3, "iid")
        assert mask.recipe.shared_walks
        assert torch.equal(mask.f, torch.ones(1, 4).double())
        kernel = mask.on(graph).to_dense()
        assert kernel.shape == (1, 5, 5)
        torch.testing.assert_close(kernel.diagonal(dim1=1, dim2=2), torch.ones(1, 5).double())
    assert model.blocks[0].attention.mask.recipe == model.blocks[1].attention.mask.recipe


@pytest.mark.parametrize("mask", ["walk", "visit", "diffusion", "power-series", "shortest-path"])
def test_masks_may_rest_and_heads_may_share_them(mask):
    model = make(mask=mask, num_heads=4, mask_options=GraphMaskOptions(learnable=False, shared_heads=True))
    for block in model.blocks:
        assert block.attention.mask.num_heads == 1
        assert [p.requires_grad for p in block.attention.mask.parameters()] == [False]
    model(features(GRAPHS[2]), GRAPHS[2]).sum().backward()
    assert [p.requires_grad for p in make(mask=mask).blocks[0].attention.mask.parameters()] == [True]


def test_options_are_added_to_those_of_a_preset():
    own = PRESETS["gkat"]["mask_options"]
    found = GraphTransformerConfig.preset("gkat", mask_options=GraphMaskOptions(seed=3, num_walks=7)).mask_options
    assert found == dataclasses.replace(own, seed=3, num_walks=7)
    assert GraphTransformerConfig.preset("gkat").mask_options == own
    given = GraphMaskOptions(num_walks=3)
    assert GraphTransformerConfig.preset("grf", mask_options=given).mask_options == given
    # Options of a preset's walks do not apply to another mask.
    assert GraphTransformerConfig.preset("gkat", mask="all", in_features=3, num_classes=2).build()


@pytest.mark.parametrize("local", ["none", "gcn", "sum"])
@pytest.mark.parametrize(("mask", "kind"), KINDS)
def test_looking_at_a_graph_first_does_not_stop_training_on_it(mask, kind, local):
    model, graph = make(mask=mask, kind=kind, local=local), tm.Graph.batch(GRAPHS)
    x = features(graph)
    with torch.inference_mode():
        expected = model(x, graph).clone()
    out = model(x, graph)
    out.square().sum().backward()
    torch.testing.assert_close(out.detach(), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("mask", ["walk", "diffusion", "shortest-path"])
def test_weights_that_are_replaced_count(mask):
    model, other = make(mask=mask), make(mask=mask)
    x, graph = features(GRAPHS[2]), GRAPHS[2]
    before = model(x, graph)
    values = {name: p.detach() + 0.3 for name, p in model.named_parameters()}
    tried = torch.func.functional_call(model, values, (x, graph))
    assert not torch.allclose(tried, before)
    assert torch.equal(model(x, graph), before)
    other.load_state_dict(model.state_dict() | values)
    torch.testing.assert_close(other(x, graph), tried)
    model.load_state_dict(model.state_dict() | values, assign=True)
    torch.testing.assert_close(model(x, graph), tried)


def test_what_only_the_graph_tells_is_seen_with_a_mask_and_not_without():
    """A node's class is that of its only neighbour, which it does not know itself."""
    torch.manual_seed(0)
    pairs = torch.arange(40).view(20, 2)
    graph = tm.Graph.from_edges(pairs.T)
    bits = torch.randint(2, (40,))
    labels = bits.view(20, 2).flip(1).flatten()
    x = torch.nn.functional.one_hot(bits, 2).float()
    losses = {}
    for name, options in {"walk": {}, "all": {}, "none": {}, "gcn": {"local": "sum"}}.items():
        torch.manual_seed(0)
        model = GraphTransformer(2, 2, 16, 1, 2, mask="none" if name == "gcn" else name, **options)
        optimizer = torch.optim.Adam(model.parameters(), 0.02)
        for _ in range(60):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x, graph), labels)
            loss.backward()
            optimizer.step()
        losses[name] = float(loss.detach())
    assert max(losses["walk"], losses["gcn"]) < 0.35
    assert min(losses["all"], losses["none"]) > 0.5


def test_walks_are_sampled_once_per_graph_whatever_the_epochs_and_layers(monkeypatch):
    model = make(mask="walk", depth=3).train()
    sampled, sample = [], WalkRecipe.sample
    monkeypatch.setattr(WalkRecipe, "sample", lambda self, graph: sampled.append(graph) or sample(self, graph))
    for order in ([0, 1, 2], [4, 2, 0], [3, 1], [0, 1, 2, 3, 4]):
        parts = [GRAPHS[k] for k in order]
        batch = tm.Graph.batch(parts)
        model(features(batch), batch).sum().backward()
    assert sum(graph.num_nodes for graph in sampled) == sum(graph.num_nodes for graph in GRAPHS)
    own = make(mask="walk", depth=3, mask_options=GraphMaskOptions(own_walks=True, seed=1))
    sampled.clear()
    own(features(GRAPHS[2]), GRAPHS[2])
    assert len(sampled) == 3


@pytest.mark.parametrize(("mask", "kind"), KINDS)
def test_a_batch_is_forgotten_after_the_next(mask, kind):
    # What is kept of a batch must not keep the batch: runs see thousands.
    model = make(mask=mask, kind=kind, local="gcn").float()
    seen = []
    for order in ([0, 1, 2], [4, 2, 0], [3, 1]):
        parts = [GRAPHS[k] for k in order]
        batch = tm.Graph.batch(parts)
        seen.append(weakref.ref(batch))
        model(features(batch).float(), batch).sum().backward()
    del batch
    gc.collect()
    assert [reference() is None for reference in seen[:-1]] == [True, True]


def test_the_graph_of_a_call_counts_and_not_that_of_the_call_before():
    model = make(mask="walk").eval()
    fresh = copy.deepcopy(model)
    other = tm.Graph.from_edges([[0, 1], [1, 2]], num_nodes=11)
    before = model(features(GRAPHS[2]), GRAPHS[2])
    assert not torch.allclose(model(features(other), other), before)
    assert torch.equal(model(features(GRAPHS[2]), GRAPHS[2]), before)
    assert torch.equal(fresh(features(GRAPHS[2]), GRAPHS[2]), before)


def test_copies_checkpoints_and_precision():
    model = make(mask="walk", mask_options=GraphMaskOptions(seed=5)).eval()
    x, graph = features(GRAPHS[2]), GRAPHS[2]
    expected = model(x, graph)
    assert torch.equal(pickle.loads(pickle.dumps(model))(x, graph), expected)
    other = make(mask="walk", mask_options=GraphMaskOptions(seed=6)).eval()
    other(x, graph)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x, graph), expected)
    torch.testing.assert_close(model.float()(x.float(), graph), expected.float(), rtol=1e-4, atol=1e-4)


def test_masks_may_be_given_or_made():
    mask = tm.DiffusionMask(num_heads=2)
    shared = GraphTransformer(3, 2, 8, 2, 2, mask=mask)
    assert sum(name.endswith("log_time") for name, _ in shared.named_parameters()) == 1
    made = GraphTransformer(3, 2, 8, 2, 2, mask=lambda heads: tm.NeighborMask() + tm.DiffusionMask(num_heads=heads))
    for model in (shared, made):
        assert model(features(GRAPHS[2]).float(), GRAPHS[2]).shape == (11, 2)
    with pytest.raises(ValueError, match="`mask_options` are for masks by name, but `mask` is a DiffusionMask"):
        GraphTransformer(3, 2, 8, 2, 2, mask=mask, mask_options=GraphMaskOptions(num_walks=3))


def test_sparse_features_and_dropout():
    import scipy.sparse as sp

    x = features(GRAPHS[2]).relu()
    rows = SparseRows.from_scipy(sp.csr_array(x.numpy()))
    model = make(readout="node").float()
    torch.testing.assert_close(model(rows, GRAPHS[2]), model(x.float(), GRAPHS[2]))
    model = make(readout="node", dropout=0.5, input_dropout=0.5, attention_dropout=0.2).float()
    assert not torch.equal(model(rows, GRAPHS[2]), model(rows, GRAPHS[2]))
    model.eval()
    assert torch.equal(model(rows, GRAPHS[2]), model(rows, GRAPHS[2]))


def test_only_queries_walk_unless_asked_otherwise():
    """Graphs have hubs, where walks of many nodes meet: with few pairs, softmax attention is linear in nodes, too."""
    for preset in ("grf", "grf-softmax"):
        model = GraphTransformerConfig.preset(preset, in_features=3, num_classes=2, dim=8, num_heads=2).build()
        assert not any(block.attention.mask.symmetric for block in model.blocks)
        star = tm.Graph.from_edges(torch.stack([torch.zeros(20_000).long(), torch.arange(1, 20_001)]), 20_001)
        with torch.no_grad():
            assert model(torch.ones(20_001, 3), star).isfinite().all()
        assert model.blocks[0].attention.mask.on(star).cost().pairs < 2 * 20_001 * 201


@pytest.mark.parametrize("readout", ["node", "mean", "sum", "attention"])
@pytest.mark.parametrize(("mask", "local"), [("walk", "none"), ("walk", "gcn"), ("none", "gcn"), ("none", "none")])
def test_every_parameter_has_a_gradient(mask, local, readout):
    """Where one has none, training in several processes stops."""
    torch.manual_seed(0)
    model = make(mask=mask, local=local, readout=readout)
    graph = tm.Graph.batch(GRAPHS)
    model(torch.randn(graph.num_nodes, 3).double(), graph).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-12, name


def test_directed_graphs_and_norms():
    for norm in ("layer", "batch", "none"):
        assert make(norm=norm, readout="node")(features(directed_graph()), directed_graph()).isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask": "walks"}, r"`mask` must be one of .*Did you mean 'walk'\?"),
        (
            {"mask": "grf-softmax"},
            r"must be one of \('walk', .*'none'\).* Pass mask='walk', kind='softmax' instead",
        ),
        ({"mask": "gkat"}, r"but is 'gkat'\. Pass mask='visit', kind='softmax' instead"),
        ({"mask": "linear"}, r"but is 'linear'\. Pass mask='all', kind='linear' instead"),
        ({"mask": "mlp"}, r"but is 'mlp'\. Pass mask='none' instead"),
        ({"mask": "visits"}, r"but is 'visits'\. Pass mask='visit' instead"),
        ({"mask": "exact"}, r"but is 'exact'\. Pass mask='power-series' instead"),
        (
            {"kind": "sofmax"},
            r"`kind` must be one of \('linear', 'softmax'\), but is 'sofmax'\. Did you mean 'softmax'",
        ),
        (
            {"feature_map": "rellu"},
            r"`feature_map` must be one of \('relu', 'elu', 'exp', 'softmax', 'identity'\) or",
        ),
        ({"normalizer": "sum"}, r"`normalizer` must be one of \('absolute', 'signed', 'none'\) for kind='linear'"),
        ({"mask": "all", "mask_options": GraphMaskOptions(num_walks=3)}, "mask 'all' has no option `num_walks`"),
        ({"local": "gat"}, "`local` must be one of"),
        ({"norm": "group"}, "`norm` must be one of"),
        ({"head_norm": "layer"}, "`head_norm` must be 'batch' or None, but is 'layer'"),
        ({"head_norm": "batch", "readout": "node"}, "`head_norm` is a norm over graphs, but readout='node'"),
        ({"readout": "max"}, "`readout` must be one of"),
        ({"dropout": 1.0}, r"`dropout` must lie in \[0, 1\)"),
        ({"attention_dropout": 1.0}, r"`attention_dropout` must lie in \[0, 1\)"),
        ({"depth": 0}, "`depth` must be at least 1"),
        ({"mlp_ratio": -1.0}, r"`mlp_ratio \* dim` must be at least 1, but is -"),
        ({"mask": None}, r"`mask` must be one of .*, a mask, or a function .* for a number of heads, but is None"),
        ({"mask": tm.WalkMask}, r"`mask` must be one of .*, a mask, or a function .*, but is the class WalkMask"),
        (
            {"mask": "power-series", "mask_options": GraphMaskOptions(max_length=2.5)},
            "an integer of at least 0, .* is 2.5",
        ),
        ({"mask": "none", "num_heads": 0}, "`num_heads` must be at least 1"),
        ({"mask": "none", "kind": "bogus"}, "`kind` must be one of"),
        ({"mask": "none", "kind": "softmax"}, "`kind` is 'softmax', but with mask='none' there is no attention"),
        ({"mask": "none", "attention_dropout": 0.5}, "`attention_dropout` is 0.5, but with mask='none'"),
        ({"mask": "none", "normalizer": "zzz"}, "`normalizer` is 'zzz', but with mask='none'"),
        ({"mask": "none", "feature_map": "relu"}, "`feature_map` is 'relu', but with mask='none'"),
        ({"mask": "all", "mask_options": GraphMaskOptions(learnable=False)}, "mask 'all' has no option `learnable`"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_the_paper_s_name_of_the_walk_mask_is_accepted():
    options = GraphMaskOptions(num_walks=3, seed=0)
    torch.manual_seed(0)
    walk = make(mask="walk", mask_options=options)
    torch.manual_seed(0)
    grf = make(mask="grf", mask_options=options)
    graph = tm.cycle_graph(5)
    assert isinstance(grf.blocks[0].attention.mask, tm.WalkMask)
    assert torch.equal(grf(features(graph), graph), walk(features(graph), graph))
    assert options.obeyed_by("grf") == options
    assert GraphTransformerConfig.preset("gkat", mask="grf").mask_options.num_walks == 50
    with pytest.raises(ValueError, match="mask 'walk' has no option `time`"):
        make(mask="grf", mask_options=GraphMaskOptions(time=2.0))


def test_inputs_and_configs_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"`x` must have shape \[num_nodes=5, in_features=3\], but has shape \(4, 3\)"):
        make()(torch.ones(4, 3).double(), tm.cycle_graph(5))
    with pytest.raises(ValueError, match=r"`x` must have a floating dtype, but has torch.int64. Pass x.float()"):
        make()(torch.ones(5, 3).long(), tm.cycle_graph(5))
    with pytest.raises(ValueError, match=r"`graph` must be a topomask.Graph, but is a list. .*Graph.batch"):
        make()(torch.ones(5, 3).double(), [tm.cycle_graph(5)])
    with pytest.raises(ValueError, match="`norm` is 'batch', which needs more than one node"):
        make(norm="batch")(torch.ones(1, 3).double(), tm.path_graph(1))
    with pytest.raises(ValueError, match="`mask_options` must be GraphMaskOptions, but is a dict"):
        make(mask_options={"num_walks": 3})
    with pytest.raises(ValueError, match="`head_norm` is 'batch', which needs more than one graph"):
        make(head_norm="batch", readout="sum")(torch.ones(5, 3).double(), tm.cycle_graph(5))
    with pytest.raises(ValueError, match="`in_features` is None"):
        GraphTransformerConfig(num_classes=2).build()
    with pytest.raises(ValueError, match="`name` must be one of"):
        GraphTransformerConfig.preset("gat")
    options = GraphMaskOptions(num_walks=3, time=2.0)
    assert options.obeyed_by("visit") == GraphMaskOptions(num_walks=3)
    assert options.obeyed_by("none") == GraphMaskOptions()


def stay_where_they_are():
    dense, walk = tm.DenseMask(torch.ones(4, 4)), tm.WalkMask(tm.cycle_graph(4), num_walks=2)
    return {
        "DenseMask": dense,
        "KroneckerMask": tm.KroneckerMask(walk, walk),
        "PrefixMask": tm.PrefixMask(walk, 1),
        "SumMask": dense + dense,
        "a part": dense + walk,
        "made": lambda _: tm.DenseMask(torch.ones(3, 1)),
    }


@pytest.mark.parametrize("name", stay_where_they_are())
def test_masks_that_stay_where_they_are_are_refused_at_once(name):
    with pytest.raises(ValueError, match=r"`mask` is a \w+Mask, which does not work on the graph of every call: "):
        make(mask=stay_where_they_are()[name])


def test_a_function_that_makes_no_mask_is_refused():
    with pytest.raises(ValueError, match="`mask` must return a mask, but returned a NoneType"):
        make(mask=lambda _: None)


def test_a_norm_before_the_head_keeps_sums_over_many_nodes_small():
    graphs = [tm.cycle_graph(300 + 20 * i) for i in range(8)]
    batch = tm.Graph.batch(graphs)
    x = features(batch).abs()
    plain, normed = make(readout="sum"), make(readout="sum", head_norm="batch")
    assert plain.represent(x, batch).std(0).mean() > 10
    torch.testing.assert_close(
        normed.represent(x, batch).std(0, correction=0), torch.ones(8).double(), atol=1e-3, rtol=0
    )
    # Statistics are those of training, so that a graph is judged alone as it is among others.
    normed.eval()
    sizes = [graph.num_nodes for graph in graphs]
    one_by_one = [normed(part, graph) for part, graph in zip(x.split(sizes), graphs, strict=True)]
    torch.testing.assert_close(normed(x, batch), torch.cat(one_by_one))


def test_without_the_graph_a_linear_head_sees_counts_only_and_another_more():
    """Nodes of three kinds: an affine map of how many there are of each explains the logits, or not."""
    torch.manual_seed(0)
    kinds = torch.nn.functional.one_hot(torch.randint(3, (60, 8)), 3).double()
    graph = tm.Graph.batch([tm.path_graph(8)] * 60)
    counts = torch.cat([kinds.sum(dim=1), torch.ones(60, 1).double()], dim=1)
    unexplained = []
    for head_dim in (None, 16):
        model = make(mask="none", local="none", readout="mean", head_dim=head_dim).double().eval()
        logits = model(kinds.flatten(0, 1), graph).detach()
        fit = counts @ torch.linalg.lstsq(counts, logits, driver="gelsd").solution
        unexplained.append(float((logits - fit).norm() / (logits - logits.mean(dim=0)).norm()))
    assert unexplained[0] < 1e-9
    assert unexplained[1] > 1e-4
    with pytest.raises(ValueError, match="`head_dim` must be at least 1, but is 0"):
        make(head_dim=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("local", ["none", "gcn", "sum"])
def test_half_precision(local, dtype):
    model, graph = make(local=local).float().eval(), GRAPHS[2]
    x = features(graph).float()
    expected = model(x, graph)
    found = model.to(dtype)(x.to(dtype), graph)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, rtol=0.1, atol=0.1)


# The compiler itself looks at the gradients of tokens between two of its graphs.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("mask", ["walk", *(pytest.param(x, marks=pytest.mark.slow) for x in ("diffusion", "none"))])
def test_compiles_on_graphs_it_has_not_seen(mask):
    model = make(mask=mask, local="gcn").float().eval()
    compiled = torch.compile(model, backend="eager")
    for graph in (tm.grid_graph(3, 4), tm.cycle_graph(6)):
        x = features(graph).float()
        torch.testing.assert_close(compiled(x, graph), model(x, graph))
