import copy
import gc
import pickle
import weakref

import pytest
import torch

import topomask as tm
from registry import ragged_graph, star_graph
from topomask.masks.bound_walks import WalkRecipe
from topomask.masks.views import MaskViews


def walk_mask(**options):
    return tm.WalkMask(tm.path_graph(1), 4, 3, num_heads=2, seed=7, symmetric=False, **options)


MAKERS = {
    "asymmetric": walk_mask,
    "symmetric": lambda: tm.WalkMask(tm.path_graph(1), 4, 3, num_heads=2, seed=7),
    "visits": lambda: tm.VisitMask(tm.path_graph(1), 4, 3, num_heads=2, seed=7, normalize=True),
    "diffusion": lambda: tm.DiffusionMask(tm.path_graph(1), num_heads=2),
    "neighbor": lambda: tm.NeighborMask(tm.path_graph(1)),
    "same graph": lambda: tm.SameGraphMask(tm.path_graph(1)),
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


def test_the_graph_asked_for_last_is_bound_once_and_others_are_let_go():
    mask, views = MAKERS["diffusion"](), MaskViews()
    graph = tm.cycle_graph(5)
    assert views.on(mask, graph) is views.on(mask, graph)
    gone = weakref.ref(graph)
    views.on(mask, GRAPHS[1])
    views.on(walk_mask(), GRAPHS[1])
    del graph
    gc.collect()
    assert gone() is None


def test_a_mask_with_new_walks_is_bound_again():
    mask, views = walk_mask(), MaskViews()
    before = views.on(mask, GRAPHS[1]).to_dense()
    mask.resample(8)
    assert not torch.equal(views.on(mask, GRAPHS[1]).to_dense(), before)


def test_copies_are_empty():
    mask, views = walk_mask(), MaskViews()
    views.on(mask, GRAPHS[1])
    for other in (copy.deepcopy(views), pickle.loads(pickle.dumps(views))):
        assert len(other._walks) == len(other._views) == 0
        other.on(mask, GRAPHS[1])


def test_parts_of_another_batch_are_refused():
    with pytest.raises(ValueError, match=r"`parts` must be the graphs of the batch, but have 12 nodes where it has 10"):
        MaskViews().on(walk_mask(), tm.cycle_graph(10), [GRAPHS[0], GRAPHS[1]])
