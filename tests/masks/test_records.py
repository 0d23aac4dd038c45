"""What is computed of a graph for masks: once per graph, as long as graph and mask are there."""

import copy
import gc
import pickle
import weakref

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch

import topomask as tm
from helpers.graphs import ragged_graph, star_graph
from topomask.ops import derived
from topomask.walks.modulation import Modulation
from topomask.walks.recipe import WalkRecipe


def walk_mask(**options) -> tm.WalkMask:
    return tm.WalkMask(None, num_walks=4, max_length=3, num_heads=2, seed=7, symmetric=False, **options)


MAKERS = {
    "asymmetric": walk_mask,
    "symmetric": lambda: tm.WalkMask(None, num_walks=4, max_length=3, num_heads=2, seed=7),
    "shared heads": lambda: walk_mask(shared_heads=True),
    "visits": lambda: tm.VisitMask(None, num_walks=4, max_length=3, num_heads=2, seed=7, normalize=True),
    "diffusion": lambda: tm.DiffusionMask(None, num_heads=2),
    "neighbor": lambda: tm.NeighborMask(),
    "all pairs": lambda: tm.AllPairsMask(),
    "degree": lambda: tm.DegreeMask(None, num_heads=2, max_degree=3),
    "power series": lambda: tm.PowerSeriesMask(None, torch.tensor([[1.0, 0.5], [1.0, -0.2]])),
    "shortest path": lambda: tm.ShortestPathMask(None, num_heads=2, max_distance=3),
    "prefix": lambda: tm.PrefixMask(walk_mask()),
    "sum": lambda: tm.SumMask([walk_mask(), tm.NeighborMask(), MAKERS["diffusion"]()]),
}


@pytest.fixture
def graphs() -> list[tm.Graph]:
    return [tm.path_graph(1), ragged_graph(), tm.Graph.from_edges([[], []], num_nodes=2), star_graph(9)]


@pytest.fixture
def sampled(monkeypatch) -> list[tm.Graph]:
    """The graphs that walks were drawn on."""
    found, sample = [], WalkRecipe.sample
    monkeypatch.setattr(WalkRecipe, "sample", lambda self, graph: found.append(graph) or sample(self, graph))
    return found


def without_parts(graph: tm.Graph) -> tm.Graph:
    """The same graph, of which nothing was computed, and that does not know what it is a batch of."""
    other = pickle.loads(pickle.dumps(graph))
    assert not other.parts
    return other


@pytest.mark.parametrize("name", MAKERS)
def test_a_batch_is_the_same_with_and_without_its_parts_to_the_last_bit(name, graphs):
    mask = MAKERS[name]()
    for order in ([0, 1, 2, 3], [3, 1], [2], [1, 0, 3], [1, 1]):
        graph = tm.Graph.batch([graphs[k] for k in order])
        assert len(graph.parts) == len(order)
        assert torch.equal(mask.on(graph).to_dense(), mask.on(without_parts(graph)).to_dense())


def test_walks_are_sampled_once_per_graph_and_shared_by_masks_of_one_recipe(graphs, sampled):
    first, second, other = walk_mask(), walk_mask(f=torch.ones(4)), walk_mask(halt_prob=0.1)
    for order in ([0, 1, 3], [3, 1], [1, 0]):
        graph = tm.Graph.batch([graphs[k] for k in order])
        found = [mask.on(graph) for mask in (first, second)]
        assert found[0]._record is found[1]._record
        assert not torch.equal(found[0].to_dense(), found[1].to_dense())
    # The first batch, all at once, and then nothing.
    assert [graph.num_graphs for graph in sampled] == [3]
    first.on(tm.Graph.batch([graphs[2], graphs[1], graphs[2]]))
    assert [graph.num_nodes for graph in sampled[1:]] == [2]
    other.on(graph)
    assert sampled[2] is graph


@pytest.mark.parametrize("order", [[1], [3, 1], [1, 1, 2]])
@pytest.mark.parametrize("name", ["asymmetric", "symmetric", "shared heads", "visits", "prefix", "sum"])
def test_walks_are_sampled_once_per_graph_in_batches_of_one_and_in_sums(name, order, graphs, sampled):
    mask = MAKERS[name]()
    for _ in range(3):
        graph = tm.Graph.batch([graphs[k] for k in order])
        mask.on(graph).to_dense()
    assert len(sampled) == 1
    if name == "sum":
        # Sums share walks with other masks of the same recipe.
        assert walk_mask().on(graph)._record is mask.on(graph)._parts[0]._record
        assert len(sampled) == 1


def test_walks_are_sampled_once_for_all_precisions(graphs, sampled):
    mask = walk_mask()
    before = mask.on(graphs[1]).to_dense()
    double = copy.deepcopy(mask).double().on(graphs[1]).to_dense()
    assert len(sampled) == 1
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), before)


def test_a_batch_of_batches_joins_what_its_parts_have(graphs, sampled):
    mask = walk_mask()
    inner = tm.Graph.batch(graphs[:2])
    mask.on(inner)
    whole = tm.Graph.batch([inner, graphs[3]])
    found = mask.on(whole)
    assert [graph.num_nodes for graph in sampled] == [12, 10]
    assert torch.equal(found.to_dense(), mask.on(without_parts(whole)).to_dense())
    assert torch.equal(found.to_dense(), mask.on(tm.Graph.batch([*graphs[:2], graphs[3]])).to_dense())


@pytest.mark.parametrize("at_rest", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_records_and_operators_go_with_their_graph(name, at_rest, graphs):
    mask = MAKERS[name]()
    gone = []
    for order in ([1], [0, 2, 1], [3, 1]):
        graph = tm.Graph.batch([graphs[k] for k in order])
        with torch.set_grad_enabled(not at_rest):
            operator = mask.on(graph)
            if at_rest:
                assert mask.on(graph) is operator
            operator.to_dense(), operator.magnitude().to_dense()
            tm.masked_softmax_attention(*torch.randn(3, 1, 2, operator.num_queries, 4), operator)
            tm.masked_attention(*torch.randn(3, 1, 2, operator.num_queries, 4), operator)
        gone += [weakref.ref(graph), weakref.ref(operator)]
    del graph, operator
    gc.collect()
    assert [reference() is None for reference in gone] == [True] * 6


def test_operators_go_with_their_mask(graphs):
    mask = walk_mask()
    with torch.no_grad():
        gone = [weakref.ref(mask), weakref.ref(mask.on(graphs[1]))]
    del mask
    gc.collect()
    assert [reference() is None for reference in gone] == [True, True]


@pytest.mark.parametrize("name", MAKERS)
def test_what_was_computed_in_inference_mode_can_be_trained(name, graphs):
    mask, graph = MAKERS[name](), tm.Graph.batch(graphs)
    operator = mask.on(without_parts(graph))
    q, k, v = torch.randn(3, 1, 2, operator.num_queries, 4)
    for attend in (tm.masked_attention, tm.masked_softmax_attention):
        with torch.inference_mode():
            attend(q, k, v, mask.on(graph))
        leaf = v.clone().requires_grad_()
        out = attend(q, k, leaf, mask.on(graph))
        torch.testing.assert_close(out, attend(q, k, v, operator))
        out.square().sum().backward()
        assert leaf.grad.isfinite().all()


def test_a_mask_with_new_walks_has_new_operators(graphs):
    for mask in (walk_mask(), tm.PrefixMask(walk_mask()), tm.SumMask([walk_mask(), tm.NeighborMask()])):
        for mode in (torch.enable_grad, torch.no_grad):
            with mode():
                before = mask.on(graphs[1]).to_dense()
                walking = next(part for part in mask.modules() if isinstance(part, tm.WalkMask))
                walking.resample(walking.seed + 1)
                found = mask.on(graphs[1]).to_dense()
                assert not torch.equal(found, before)
                assert torch.equal(found, copy.deepcopy(mask).on(without_parts(graphs[1])).to_dense())


def test_an_operator_has_the_modules_that_its_mask_has_now(graphs):
    mask = walk_mask()
    with torch.no_grad():
        mask.on(graphs[1])
        mask.modulation = Modulation(2, 3, torch.rand(2, 4) + 0.1, positive=True)
        expected = walk_mask(f=mask.f, positive=True).on(graphs[1])
        torch.testing.assert_close(mask.on(graphs[1]).to_dense(), expected.to_dense())
        assert mask.on(graphs[1]).magnitude() is mask.on(graphs[1])


@pytest.mark.parametrize("name", ["power series", "diffusion", "asymmetric", "neighbor"])
def test_a_part_that_is_replaced_is_used(name, graphs):
    mask, other = tm.PrefixMask(MAKERS["degree"]()), MAKERS[name]()
    with torch.no_grad():
        before = mask.on(graphs[1]).to_dense()
        mask.mask = other
        found = mask.on(graphs[1]).to_dense()
        assert torch.equal(found, tm.PrefixMask(other).on(graphs[1]).to_dense())
        assert found.shape != before.shape or not torch.equal(found, before)


@pytest.mark.parametrize("name", MAKERS)
def test_copies_share_the_graph_and_its_records_but_no_parameters(name, graphs, sampled):
    mask = MAKERS[name]()
    mask.graph = graphs[1]
    count = len(sampled)
    with torch.no_grad():
        before = mask.on()
        other = copy.deepcopy(mask)
        assert other.graph is mask.graph
        assert not {id(x) for x in other.parameters()} & {id(x) for x in mask.parameters()}
        assert other.on() is not before
        assert len(sampled) == count, "walks are not drawn again"
        loaded = pickle.loads(pickle.dumps(mask))
        for one in (other, loaded):
            assert torch.equal(one.to_dense(), before.to_dense())
            for parameter in one.parameters():
                parameter.add_(0.3)
        assert mask.on() is before


def test_walks_that_no_mask_has_any_more_are_let_go(graphs):
    graph = graphs[1]
    first, second = walk_mask(), walk_mask()
    for seed in range(5):
        first.resample(seed)
        for mask in (first, second):
            assert torch.equal(mask.on(graph).to_dense(), mask.on(without_parts(graph)).to_dense())
    gc.collect()
    # Walks, and the record of them, of either mask.
    kept = [name for name in vars(graph._records) if not name.startswith("_")]
    assert len(kept) == len(graph._records._recipes) == 4
    del first, second, mask
    gc.collect()
    assert not graph._records._recipes


def test_walks_on_a_default_graph_are_let_go_when_they_are_drawn_anew(graphs):
    mask = tm.WalkMask(graphs[1], num_walks=4, max_length=3, seed=0)
    gone = [weakref.ref(mask.on()._record), weakref.ref(mask.walks[0])]
    mask.resample(1)
    gc.collect()
    assert [reference() is None for reference in gone] == [True, True]
    gone = [weakref.ref(mask.on()._record), weakref.ref(graphs.pop(1))]
    mask.graph = graphs[0]
    gc.collect()
    assert [reference() is None for reference in gone] == [True, True]


# Masks whose patterns are derived from one another, or from themselves.
DERIVING = {name: lambda make=make: [make()] for name, make in MAKERS.items()} | {
    "shared walks": lambda: [tm.WalkMask(None, num_walks=4, max_length=3, seed=7, shared_walks=True)],
    "both orders": lambda: [walk_mask() + tm.NeighborMask(), tm.NeighborMask() + walk_mask()],
}


@pytest.mark.parametrize("name", DERIVING)
def test_patterns_that_were_derived_go_with_their_graph(name):
    masks = DERIVING[name]()
    gc.collect()
    before = len(derived._kept)
    for _ in range(3):
        graph = tm.Graph.batch([ragged_graph(), star_graph(9)])
        operators = [mask.on(graph) for mask in masks]
        if operators[0].cost().pairs is None:
            pytest.skip("no sparse entries")
        for operator in operators:
            tm.masked_attention(*torch.randn(3, 1, 2, operator.num_queries, 4), operator, strategy="pairs")
    del graph, operators, operator
    gc.collect()
    assert len(derived._kept) == before


def test_masks_with_walks_given_can_be_pickled_and_share_their_record(graphs):
    graph = graphs[1]
    walks = walk_mask().sample(graph)
    masks = [tm.WalkMask(graph, num_walks=4, max_length=3, num_heads=2, symmetric=False, walks=walks) for _ in range(2)]
    assert masks[0].seed != masks[1].seed
    assert masks[0].on()._record is masks[1].on()._record
    other = pickle.loads(pickle.dumps(masks[0]))
    assert torch.equal(other.to_dense(), masks[0].to_dense())
    with pytest.raises(ValueError, match="max_length"):
        tm.WalkMask(graph, num_walks=4, max_length=2, num_heads=2, symmetric=False, walks=walks)


def test_pickled_graphs_are_as_small_as_new_ones(graphs):
    before = len(pickle.dumps(graphs[3]))
    tm.WalkMask(graphs[3], num_walks=4, max_length=3)
    assert len(pickle.dumps(graphs[3])) == before


def test_graphs_that_a_mask_cannot_be_on_are_refused_and_change_nothing(graphs):
    mask = tm.WalkMask(graphs[1], num_walks=4, max_length=3, seed=0)
    before = mask.to_dense()
    directed = tm.Graph.from_edges([(0, 1)], directed=True)
    for graph, message in (("abc", "must be a topomask.Graph, but is a str"), (directed, "symmetric=False")):
        with pytest.raises(ValueError, match=message):
            mask.graph = graph
    assert mask.graph is graphs[1]
    assert torch.equal(mask.to_dense(), before)
    for other in (tm.ToeplitzMask((2, 2)), tm.PrefixMask(tm.DenseMask(torch.ones(2, 2)))):
        with pytest.raises(ValueError, match="does not take a graph"):
            other.graph = graphs[1]


PATHS = {
    "torch.Tensor": (torch.tensor([[0, 1], [1, 2]]), "tm.Graph.from_edges"),
    "numpy.ndarray": (np.array([[0, 1], [1, 2]]), "tm.Graph.from_edges"),
    "list": ([(0, 1), (1, 2)], "tm.Graph.from_edges.*tm.Graph.batch"),
    "scipy.csr_array": (sp.csr_array(np.eye(3)), "tm.Graph.from_scipy"),
    "networkx.Graph": (nx.path_graph(3), "tm.Graph.from_networkx"),
}


@pytest.mark.parametrize("name", PATHS)
def test_what_is_no_graph_is_named_with_the_call_that_converts_it(name):
    given, call = PATHS[name]
    message = rf"`graph` must be a topomask\.Graph, but is a {name}\. .*{call}"
    path = tm.path_graph(3)
    makers = [tm.WalkMask, tm.VisitMask, tm.DiffusionMask, tm.NeighborMask, tm.ShortestPathMask, tm.DegreeMask]
    makers += [tm.AllPairsMask, tm.ForestMask, tm.ForestMask.from_graph, tm.PowerSeriesMask]
    for make in makers:
        mask = make(path)
        runs = [lambda make=make: make(given), lambda mask=mask: mask.on(given)]
        runs += [lambda mask=mask: setattr(mask, "graph", given)]
        runs += [lambda mask=mask: mask.sample(given)] if hasattr(mask, "sample") else []
        for run in runs:
            with pytest.raises(ValueError, match=message):
                run()
        assert mask.graph.num_nodes == 3
    for mask in (tm.WalkMask(path) + tm.DenseMask(torch.ones(3, 3)), tm.PrefixMask(tm.WalkMask(path))):
        with pytest.raises(ValueError, match=message):
            mask.on(given)
    with pytest.raises(ValueError, match=message):
        tm.KroneckerMask(tm.NeighborMask(path), tm.NeighborMask(path)).on((given, path))


def test_pyg_data_is_named_with_the_call_that_converts_it():
    data = pytest.importorskip("torch_geometric.data").Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
    with pytest.raises(ValueError, match=r"but is a torch_geometric\.Data\. .*tm.Graph.from_pyg"):
        tm.WalkMask(data)
