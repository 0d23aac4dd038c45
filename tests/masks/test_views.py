import copy
import gc
import pickle
import weakref

import pytest
import torch

import topomask as tm
from registry import ragged_graph, star_graph
from topomask.masks import views as module
from topomask.masks.bound_walks import WalkRecipe
from topomask.masks.views import MaskViews
from topomask.modulation import Modulation


def walk_mask(**options):
    return tm.WalkMask(tm.path_graph(1), 4, 3, num_heads=2, seed=7, symmetric=False, **options)


MAKERS = {
    "asymmetric": walk_mask,
    "symmetric": lambda: tm.WalkMask(tm.path_graph(1), 4, 3, num_heads=2, seed=7),
    "visits": lambda: tm.VisitMask(tm.path_graph(1), 4, 3, num_heads=2, seed=7, normalize=True),
    "diffusion": lambda: tm.DiffusionMask(tm.path_graph(1), num_heads=2),
    "neighbor": lambda: tm.NeighborMask(tm.path_graph(1)),
    "same graph": lambda: tm.SameGraphMask(tm.path_graph(1)),
    "power series": lambda: tm.PowerSeriesMask(tm.path_graph(1), torch.tensor([[1.0, 0.5], [1.0, -0.2]])),
    "shortest path": lambda: tm.ShortestPathMask(tm.path_graph(1), 2, 3),
    "sum": lambda: tm.SumMask([walk_mask(), tm.NeighborMask(tm.path_graph(1)), MAKERS["diffusion"]()]),
}
GRAPHS = [tm.path_graph(1), ragged_graph(), tm.Graph.from_edges([[], []], num_nodes=2), star_graph(9)]


@pytest.mark.parametrize("name", MAKERS)
def test_a_view_is_the_mask_on_the_batch_to_the_last_bit(name):
    mask, views = MAKERS[name](), MaskViews()
    for order in ([0, 1, 2, 3], [3, 1], [2], [1, 0, 3]):
        parts = [GRAPHS[k] for k in order]
        graph = tm.Graph.batch(parts)
        assert torch.equal(views.on(mask, graph, parts).to_dense(), mask.on(graph).to_dense())
        assert torch.equal(views.on(mask, graph).to_dense(), mask.on(graph).to_dense())


def test_walks_are_sampled_once_per_graph_and_shared_by_masks_of_one_recipe(monkeypatch):
    sampled, sample = [], WalkRecipe.sample
    monkeypatch.setattr(WalkRecipe, "sample", lambda self, graph: sampled.append(graph) or sample(self, graph))
    first, second, other = walk_mask(), walk_mask(f=torch.ones(4)), walk_mask(halt_prob=0.1)
    sampled.clear()
    views = MaskViews()
    for order in ([0, 1, 3], [3, 1], [1, 0]):
        parts = [GRAPHS[k] for k in order]
        graph = tm.Graph.batch(parts)
        found = [views.on(mask, graph, parts) for mask in (first, second)]
        assert found[0]._walks is found[1]._walks
        assert not torch.equal(found[0].to_dense(), found[1].to_dense())
    # The first batch, all at once, and then nothing.
    assert [graph.num_graphs for graph in sampled] == [3]
    parts = [GRAPHS[2], GRAPHS[1], GRAPHS[2]]
    views.on(first, tm.Graph.batch(parts), parts)
    assert [graph.num_nodes for graph in sampled[1:]] == [2]
    views.on(other, graph, [GRAPHS[1], GRAPHS[0]])
    assert sampled[2] is graph


@pytest.mark.parametrize("order", [[1], [3, 1], [1, 1, 2]])
@pytest.mark.parametrize("name", ["asymmetric", "symmetric", "visits", "sum"])
def test_walks_are_sampled_once_per_graph_in_batches_of_one_and_in_sums(name, order, monkeypatch):
    mask, views = MAKERS[name](), MaskViews()
    sampled, sample = [], WalkRecipe.sample
    monkeypatch.setattr(WalkRecipe, "sample", lambda self, graph: sampled.append(graph) or sample(self, graph))
    parts = [GRAPHS[k] for k in order]
    for _ in range(3):
        graph = tm.Graph.batch(parts)
        found = views.on(mask, graph, parts).to_dense()
    assert len(sampled) == 1
    assert torch.equal(found, mask.on(graph).to_dense())
    if name == "sum":
        # Sums share walks with other masks of the same recipe.
        assert views.on(walk_mask(), graph, parts)._walks is views.on(mask, graph, parts).masks[0]._walks


@pytest.mark.parametrize("with_parts", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_the_graph_asked_for_last_is_bound_once_and_others_are_let_go(name, with_parts):
    mask, views = MAKERS[name](), MaskViews()
    gone = []
    for order in ([1], [0, 2, 1], [3, 1]):
        parts = [GRAPHS[k] for k in order]
        graph = tm.Graph.batch(parts)
        gone.append(weakref.ref(graph))
        given = parts if with_parts else None
        view = views.on(mask, graph, given)
        assert view is views.on(mask, graph, given)
        view.to_dense()
        tm.masked_softmax_attention(*torch.randn(3, 1, 2, graph.num_nodes, 4), view)
    del graph, view
    views.on(mask, GRAPHS[1])
    gc.collect()
    assert [reference() is None for reference in gone] == [True] * 3


@pytest.mark.parametrize("name", MAKERS)
def test_a_view_has_the_parameters_that_its_mask_has_now(name):
    mask, views, graph = MAKERS[name](), MaskViews(), GRAPHS[1]
    views.on(mask, graph).to_dense()
    other = copy.deepcopy(mask)
    for parameter in other.parameters():
        parameter.data += 0.3
    expected = other.on(graph).to_dense()

    class OnGraph(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mask = mask

        def forward(self):
            return views.on(mask, graph).to_dense()

    tried = {f"mask.{name}": p.detach() for name, p in other.named_parameters()}
    assert torch.equal(torch.func.functional_call(OnGraph(), tried, ()), expected)
    assert torch.equal(views.on(mask, graph).to_dense(), mask.on(graph).to_dense())
    mask.load_state_dict(other.state_dict(), assign=True)
    assert torch.equal(views.on(mask, graph).to_dense(), expected)


@pytest.mark.parametrize("name", MAKERS)
def test_a_view_that_was_made_in_inference_mode_can_be_trained(name):
    mask, views = MAKERS[name](), MaskViews()
    graph = tm.Graph.batch(GRAPHS)
    q, k, v = torch.randn(3, 1, 2, graph.num_nodes, 4)
    for attend in (tm.masked_attention, tm.masked_softmax_attention):
        with torch.inference_mode():
            attend(q, k, v, views.on(mask, graph, GRAPHS))
        attend(q, k, v.clone().requires_grad_(), views.on(mask, graph, GRAPHS)).square().sum().backward()


def test_a_mask_with_new_walks_is_bound_again():
    mask, views = walk_mask(), MaskViews()
    before = views.on(mask, GRAPHS[1]).to_dense()
    mask.resample(8)
    assert not torch.equal(views.on(mask, GRAPHS[1]).to_dense(), before)


def test_a_part_with_new_walks_is_bound_again():
    mask, views = tm.PrefixMask(walk_mask()), MaskViews()
    before = views.on(mask, GRAPHS[1]).to_dense()
    next(part for part in mask.modules() if isinstance(part, tm.WalkMask)).resample(8)
    found = views.on(mask, GRAPHS[1]).to_dense()
    assert not torch.equal(found, before)
    assert torch.equal(found, mask.on(GRAPHS[1]).to_dense())


def test_a_view_has_the_modules_that_its_mask_has_now():
    mask, views = walk_mask(), MaskViews()
    views.on(mask, GRAPHS[1])
    mask.modulation = Modulation(2, 3, torch.rand(2, 4) + 0.1, positive=True)
    assert torch.equal(views.on(mask, GRAPHS[1]).to_dense(), mask.on(GRAPHS[1]).to_dense())


@pytest.mark.parametrize(
    "other",
    [
        tm.PowerSeriesMask(tm.path_graph(1), torch.tensor([1.0, 0.5])),
        tm.DiffusionMask(tm.path_graph(1), "normalized_laplacian"),
    ],
)
def test_a_part_that_is_replaced_is_bound(other):
    mask, views = tm.PrefixMask(tm.DiffusionMask(tm.path_graph(1))), MaskViews()
    views.on(mask, GRAPHS[1])
    mask.mask = other
    assert torch.equal(views.on(mask, GRAPHS[1]).to_dense(), mask.on(GRAPHS[1]).to_dense())


def test_copies_are_empty():
    mask, views = walk_mask(), MaskViews()
    views.on(mask, GRAPHS[1])
    for other in (copy.deepcopy(views), pickle.loads(pickle.dumps(views))):
        assert len(other._walks) == len(other._views) == 0
        other.on(mask, GRAPHS[1])


def test_parts_of_another_batch_are_refused():
    with pytest.raises(ValueError, match=r"`parts` must be the graphs of the batch, but have 12 nodes where it has 10"):
        MaskViews().on(walk_mask(), tm.cycle_graph(10), [GRAPHS[0], GRAPHS[1]])


RING, LINE = tm.cycle_graph(5), tm.path_graph(5)
HEAVY = tm.Graph.from_edges(RING.to_edge_index()[0], weights=[2.0] * 10)
WRONG = {
    "other sizes": (tm.Graph.batch([LINE, GRAPHS[0], GRAPHS[1]]), [LINE, GRAPHS[1], GRAPHS[0]], 1),
    "other edges": (tm.Graph.batch([RING, RING, LINE]), [RING, LINE, RING], 1),
    "other weights": (tm.Graph.batch([LINE, RING, HEAVY]), [LINE, RING, RING], 2),
    "one graph of two components": (tm.Graph.from_scipy(tm.Graph.batch([RING, LINE]).to_scipy()), [RING, LINE], 1),
    "one other graph": (tm.Graph.batch([RING]), [LINE], 0),
}


@pytest.mark.parametrize("name", WRONG)
def test_parts_in_another_order_are_refused_and_nothing_is_kept_of_them(name):
    graph, parts, number = WRONG[name]
    views = MaskViews()
    with pytest.raises(ValueError, match=rf"`parts` .* in their order, but number {number}, Graph\(num_nodes="):
        views.on(walk_mask(), graph, parts)
    assert not any(views._walks.get(part) for part in parts)


def test_parts_are_compared_once_per_batch(monkeypatch):
    compared, compare = [], module._check_parts
    monkeypatch.setattr(module, "_check_parts", lambda *args: compared.append(1) or compare(*args))
    masks, views = [walk_mask(), walk_mask()], MaskViews()
    graph = tm.Graph.batch(GRAPHS)
    for mask in masks * 2:
        views.on(mask, graph, GRAPHS)
    assert len(compared) == 1


def test_walks_that_no_mask_has_any_more_are_let_go():
    first, second, views, graph = walk_mask(), walk_mask(), MaskViews(), ragged_graph()
    for seed in range(5):
        first.resample(seed)
        for mask in (first, second):
            assert torch.equal(views.on(mask, graph).to_dense(), mask.on(graph).to_dense())
    # Those of either mask; as long as the second has them, those that both had at first.
    assert [len(kept) for kept in (views._walks[graph], views._bound, views._views)] == [2, 2, 2]
