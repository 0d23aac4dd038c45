import pytest
import torch
from safetensors.torch import load, save

import topomask as tm
from helpers.graphs import directed_graph, ragged_batch, ragged_graph, signed_graph
from helpers.mask_cases.walks import visit_mask, walk_mask

GRAPHS = [ragged_graph, directed_graph, signed_graph, ragged_batch]


def counted(mask: tm.VisitMask, f: torch.Tensor, ensemble: str = "query", **settings) -> torch.Tensor:
    """Phi [H, N, N] by following every walker."""
    size = mask.graph.num_nodes
    phi = torch.zeros(mask.num_heads, size, size, dtype=torch.float64)
    for head in range(mask.num_heads):
        walks = tm.random_walks(mask.graph, seed=mask.seed, head=head, ensemble=ensemble, **settings)
        for start in range(size):
            for walk in walks[start].tolist():
                for step, node in enumerate(walk):
                    if node >= 0:
                        phi[head, start, node] += f[head, step] / len(walks[start])
    return phi


@pytest.mark.parametrize("make", GRAPHS)
@pytest.mark.parametrize(
    "draws",
    [{"coupling": "repelling"}, {"coupling": "iid", "halt_prob": 0.3}, {"coupling": "antithetic", "halt_prob": 0.3}],
)
def test_is_the_overlap_of_visits(make, draws):
    mask = visit_mask(make(), num_heads=2, **draws)
    phi = counted(mask, mask.f.detach(), num_walks=6, length=3, **draws)
    torch.testing.assert_close(mask.to_dense(), phi @ phi.mT, rtol=1e-6, atol=1e-6)
    own = visit_mask(make(), num_heads=2, shared_walks=False, **draws)
    keys = counted(own, own.f.detach(), "key", num_walks=6, length=3, **draws)
    torch.testing.assert_close(own.to_dense(), phi @ keys.mT, rtol=1e-6, atol=1e-6)


def test_counts_visits_by_default():
    """Whole numbers over the number of walkers, equal to the last bit."""
    mask = tm.VisitMask(ragged_graph(), num_walks=4, max_length=5, num_heads=2, seed=3)
    assert torch.equal(mask.f, torch.ones(2, 6))
    assert mask.walks.weighting == "visits"
    phi = counted(mask, torch.ones(2, 6), num_walks=4, length=5, coupling="repelling")
    assert torch.equal(mask.to_dense().double(), phi @ phi.mT)
    # A walk of 5 steps that never ends visits 6 nodes in all.
    walking = torch.from_numpy(ragged_graph().degrees > 0)
    assert torch.equal(phi.sum(dim=-1), torch.where(walking, 6.0, 1.0).double().expand(2, -1))


@pytest.mark.parametrize("make", GRAPHS)
def test_is_positive_semidefinite_where_walks_are_shared(make):
    for normalize in (False, True):
        dense = visit_mask(make(), num_heads=2, normalize=normalize).to_dense().detach()
        assert torch.equal(dense, dense.mT) or (dense - dense.mT).abs().max() < 1e-14
        assert torch.linalg.eigvalsh(dense).min() > -1e-12
    own = visit_mask(tm.grid_graph(4, 4), num_walks=2, shared_walks=False).to_dense()
    assert not torch.allclose(own, own.mT)


def test_normalized_rows():
    mask = visit_mask(ragged_graph(), num_heads=2, normalize=True)
    phi = counted(mask, mask.f.detach(), num_walks=6, length=3, coupling="repelling")
    unit = phi / phi.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(mask.to_dense(), unit @ unit.mT, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(mask.to_dense().diagonal(dim1=1, dim2=2), torch.ones(2, 11, dtype=torch.float64))
    # The scale of f does not matter, also for the gradient; a row that vanishes stays 0.
    (gradient,) = torch.autograd.grad(mask.to_dense().square().sum(), mask.modulation.weight)
    torch.testing.assert_close((gradient * mask.f).sum(dim=1), torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-9)
    with torch.no_grad():
        mask.modulation.weight.zero_()
    (gradient,) = torch.autograd.grad(mask.to_dense().square().sum(), mask.modulation.weight)
    assert (mask.to_dense() == 0).all()
    assert gradient.isfinite().all()


def test_differs_from_importance_weights_as_it_should():
    """On a regular graph without halting they agree; halting and unequal degrees tell them apart."""
    f = torch.tensor([1.0, 0.5, 0.25, 0.125], dtype=torch.float64)
    options = dict(f=f, shared_walks=True)
    cycle = tm.cycle_graph(9)
    torch.testing.assert_close(visit_mask(cycle, **options).to_dense(), walk_mask(cycle, **options).to_dense())
    for graph, draws in ((cycle, {"halt_prob": 0.4}), (tm.grid_graph(3, 3), {})):
        visits, loads = (make(graph, **options, **draws).to_dense() for make in (visit_mask, walk_mask))
        assert not torch.allclose(visits, loads, rtol=0.05)


def test_checkpoints():
    trained = visit_mask(ragged_graph(), num_heads=2, seed=5, num_walks=9)
    with torch.no_grad():
        trained.modulation.weight.mul_(2.0)
    for save_walks in (False, True):
        trained.save_walks = save_walks
        state = load(save(trained.state_dict()))
        fresh = visit_mask(ragged_graph(), num_heads=2, seed=77, num_walks=3)
        fresh.load_state_dict(state)
        assert fresh.seed == 5
        assert torch.equal(fresh.to_dense(), trained.to_dense())
        importance = walk_mask(ragged_graph(), num_heads=2, shared_walks=True)
        with pytest.raises(ValueError, match="weighting='visits'"):
            importance.load_state_dict(state)


def test_on_another_graph_and_on_walks_already_sampled():
    mask = visit_mask(ragged_graph(), num_heads=2)
    grid = tm.grid_graph(3, 3)
    assert torch.equal(mask.on(grid, walks=mask.sample(grid)).to_dense(), mask.on(grid).to_dense())
    assert torch.equal(mask.on(grid).to_dense(), visit_mask(grid, num_heads=2).to_dense())
    (gradient,) = torch.autograd.grad(mask.on(grid).to_dense().sum(), mask.modulation.weight)
    assert gradient.abs().sum() > 0
    weighted = tm.sample_features(grid, 6, 3, num_heads=2, seed=1)
    with pytest.raises(ValueError, match="weighting"):
        mask.on(grid, walks=weighted)
    with pytest.raises(ValueError, match="one WalkFeatures"):
        mask.on(grid, walks=(weighted, weighted))
    mask.resample(2)
    assert mask.seed == 2


def test_heads_share_their_walks_where_asked():
    for normalize in (False, True):
        mask = visit_mask(ragged_graph(), num_heads=2, shared_heads=True, normalize=normalize)
        assert mask.walks.num_heads == 1
        for head, f in enumerate(mask.f.detach()):
            alone = visit_mask(ragged_graph(), f=f, normalize=normalize)
            torch.testing.assert_close(mask.to_dense()[head], alone.to_dense()[0])


def test_bad_arguments_are_named():
    for change, message in (
        ({"num_walks": 0}, "num_walks"),
        ({"max_length": -2}, "max_length"),
        ({"f": torch.ones(3)}, "`f`"),
        ({"coupling": "quasi"}, "coupling"),
    ):
        for graph in (ragged_graph(), None):
            with pytest.raises(ValueError, match=message):
                tm.VisitMask(graph, **change)


@pytest.mark.parametrize("size", [1e-13, 1e-18, 1e15])
def test_normalised_rows_have_finite_gradients_whatever_the_size_of_f(size):
    """Norms cancel a factor of f; their slopes are powers of it that float32 does not hold."""
    results = []
    for factor in (1.0, size):
        start = factor * torch.tensor([1.0, 0.5])
        mask = tm.VisitMask(tm.path_graph(3), num_walks=2, max_length=1, normalize=True, seed=0, f=start)
        dense = mask.to_dense()
        (grad,) = torch.autograd.grad(dense.square().sum(), mask.modulation.weight)
        results.append((dense, grad * start))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
