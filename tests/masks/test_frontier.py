"""What is particular to masks of pruned frontiers; the laws cover the rest."""

import copy

import pytest
import torch

import topomask as tm
from helpers.graphs import directed_graph, ragged_batch, ragged_graph, signed_graph, star_graph


def exact(graph: tm.Graph, f: torch.Tensor, symmetric: bool) -> torch.Tensor:
    """The mask that frontiers approximate, from powers of W in float64, [H, N, N]."""
    w = torch.from_numpy(graph.adjacency("row" if graph.directed else "sym").toarray())
    powers = torch.stack([torch.linalg.matrix_power(w, length) for length in range(f.shape[1])])
    phi = torch.einsum("hl,lij->hij", f.double(), powers)
    return phi @ phi.mT if symmetric else phi


@pytest.mark.parametrize("prune", ["largest", "resample"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_wide_frontiers_are_exact(prune, symmetric):
    graph = ragged_graph()
    f = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    mask = tm.WalkMask(graph, prune=prune, width=1000, max_length=4, num_heads=2, symmetric=symmetric, f=f)
    torch.testing.assert_close(mask.to_dense().double(), exact(graph, f, symmetric), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [ragged_graph, ragged_batch, signed_graph, lambda: star_graph(40)])
def test_the_largest_give_a_symmetric_positive_semidefinite_mask(make):
    """For every f; queries alone do not."""
    graph, f = make(), torch.tensor([[0.5, -1.0, 2.0, 0.3]])
    mask = tm.WalkMask(graph, prune="largest", width=3, max_length=3, f=f).double()
    dense = mask.to_dense()[0].detach()
    torch.testing.assert_close(dense, dense.mT, rtol=0, atol=1e-12)
    assert torch.linalg.eigvalsh(dense).min() > -1e-9
    alone = tm.WalkMask(graph, prune="largest", width=3, max_length=3, f=f, symmetric=False).to_dense()[0]
    assert not torch.allclose(alone, alone.mT)


def test_one_set_serves_heads_layers_and_seeds():
    graph = tm.grid_graph(4, 5)
    first, second = (tm.WalkMask(graph, prune="largest", num_heads=3, seed=seed) for seed in (1, 2))
    assert first.recipe is second.recipe
    assert first.on()._record is second.on()._record
    assert first.walks.num_heads == 1
    assert "seed" not in repr(first)
    state = torch.random.get_rng_state()
    tm.WalkMask(graph, prune="largest")
    assert torch.equal(torch.random.get_rng_state(), state), "nothing is drawn"


def test_resampled_frontiers_differ_by_head_ensemble_and_seed():
    graph = star_graph(40)
    options = {"prune": "resample", "width": 4, "max_length": 3, "num_heads": 2}
    masks = [tm.WalkMask(graph, seed=seed, **options) for seed in (1, 1, 2)]
    dense = [mask.to_dense() for mask in masks]
    assert torch.equal(dense[0], dense[1])
    assert not torch.equal(dense[0], dense[2])
    assert not torch.equal(dense[0][0], dense[0][1])
    query, key = masks[0].walks
    assert query.fingerprint != key.fingerprint
    masks[0].resample(2)
    assert torch.equal(masks[0].to_dense(), dense[2])


REFUSED = [
    ({"prune": "largest", "num_walks": 5}, r"`num_walks` is 5, but there are no walkers with prune='largest'"),
    ({"prune": "resample", "coupling": "iid"}, r"`coupling` is 'iid', but there are no walkers"),
    ({"prune": "largest", "halt_prob": 0.1}, r"`halt_prob` is 0.1, but there are no walkers"),
    ({"width": 5}, r"`width` is 5, but random walks have none. Pass prune='largest' too"),
    ({"max_entries": 5}, r"`max_entries` is 5, but random walks have none"),
    ({"prune": "largest", "shared_walks": True}, r"draws nothing: one set of features serves queries and keys"),
    ({"prune": "resample", "max_entries": 4}, r"which would bias the features"),
    ({"prune": "big"}, r"`prune` must be one of \('largest', 'resample'\), but is 'big'"),
    ({"prune": "largest", "width": 0}, r"`width` must be an integer of at least 1, but is 0"),
    ({"prune": "largest", "max_entries": 0}, r"`max_entries` must be an integer of at least 1, but is 0"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_cannot_be_obeyed_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        tm.WalkMask(tm.path_graph(4), **options)


def test_the_largest_cannot_be_drawn_again():
    mask = tm.WalkMask(tm.path_graph(4), prune="largest")
    with pytest.raises(ValueError, match=r"draws nothing.*prune='resample' or prune=None"):
        mask.resample(3)
    with pytest.raises(ValueError, match=r"Pass symmetric=False"):
        tm.WalkMask(directed_graph(), prune="largest")


@pytest.mark.parametrize("make", [ragged_graph, ragged_batch, signed_graph, lambda: tm.grid_graph(7, 8)])
@pytest.mark.parametrize("symmetric", [False, True])
def test_the_bound_holds(make, symmetric):
    graph = make()
    for seed in range(10):
        f = torch.randn(2, 5, generator=torch.Generator().manual_seed(seed))
        mask = tm.WalkMask(graph, prune="largest", width=2, max_length=4, num_heads=2, symmetric=symmetric, f=f)
        error = mask.double().to_dense().detach() - exact(graph, mask.f.detach(), symmetric)
        error = error.abs().amax(dim=-1) if symmetric else error.norm(dim=-1)
        bound = mask.error_bound()
        assert (error <= bound).all()
        # Not idle: of the size of the error where there is one, for f of any sign and narrow frontiers.
        assert (bound / error)[error > 1e-6].median() < (60 if symmetric else 10)


def test_the_bound_of_a_batch_is_that_of_its_graphs():
    graphs = [tm.grid_graph(4, 5), star_graph(30), tm.path_graph(1)]
    mask = tm.WalkMask(prune="largest", width=3, max_length=3)
    apart = torch.cat([mask.error_bound(graph) for graph in graphs], dim=1)
    torch.testing.assert_close(mask.error_bound(tm.Graph.batch(graphs)), apart)


def test_what_is_drawn_has_no_bound():
    for options in ({}, {"symmetric": False}, {"prune": "resample"}, {"prune": "resample", "symmetric": False}):
        with pytest.raises(ValueError, match=r"prune='largest'"):
            tm.WalkMask(tm.path_graph(4), **options).error_bound()


@pytest.mark.parametrize("save_walks", [False, True])
@pytest.mark.parametrize("options", [{"prune": "largest", "max_entries": 5}, {"prune": "resample", "seed": 3}])
def test_checkpoints(options, save_walks):
    graph = star_graph(30)
    mask = tm.WalkMask(graph, width=6, max_length=3, num_heads=2, save_walks=save_walks, **options)
    other = tm.WalkMask(graph, prune=options["prune"], width=4, max_length=3, num_heads=2)
    other.load_state_dict(mask.state_dict())
    assert torch.equal(other.to_dense(), mask.to_dense())
    assert other.recipe is mask.recipe
    for clone in (copy.deepcopy(mask), copy.copy(mask)):
        assert torch.equal(clone.to_dense(), mask.to_dense())
    walking = tm.WalkMask(graph, max_length=3, num_heads=2)
    with pytest.raises(ValueError, match=r"another kind. Build the mask with prune='largest' or prune='resample'"):
        walking.load_state_dict(mask.state_dict())
    with pytest.raises(ValueError, match=r"another kind. Build the mask with prune=None"):
        mask.load_state_dict(walking.state_dict())


def test_a_batch_has_the_bits_of_its_graphs():
    graphs = [tm.grid_graph(4, 5), star_graph(30)]
    for options in ({"prune": "largest"}, {"prune": "resample", "seed": 3}):
        mask = tm.WalkMask(width=3, max_length=3, **options)
        parts = [mask.on(graph).to_dense() for graph in graphs]
        whole = mask.on(tm.Graph.batch(graphs)).to_dense()
        assert torch.equal(whole[:, :20, :20], parts[0])
        assert torch.equal(whole[:, 20:, 20:], parts[1])


def test_three_neighbour_lists_are_exact():
    """The paper's point clouds: 27 walks of three hops, of which at most 40 nodes are reached."""
    points = torch.rand(200, 3, generator=torch.Generator().manual_seed(0))
    graph = tm.knn_graph(points, k=3, directed=True)
    f = torch.tensor([[1.0, 0.7, 0.5, 0.3]])
    mask = tm.WalkMask(graph, prune="largest", width=27, max_entries=40, max_length=3, symmetric=False, f=f)
    torch.testing.assert_close(mask.to_dense().double(), exact(graph, f, False), rtol=1e-6, atol=1e-7)
    assert mask.error_bound().max() < 1e-5
