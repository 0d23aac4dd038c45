import math
import warnings

import numpy as np
import pytest
import torch

import topomask as tm
from helpers.graphs import directed_graph, ragged_graph, star_graph
from topomask.walks import theory

F = torch.tensor([1.0, -0.5, 0.25], dtype=torch.float64)


def test_general_constant_is_the_papers():
    """On a d-regular graph W_ij / p_ij = 1, so c is a geometric sum in 1 / (1 - halt_prob)."""
    c = theory.load_constant(tm.cycle_graph(5), F, 0.2, telescoped=False)
    assert c == pytest.approx(1.0 + 0.5 / 0.8 + 0.25 / 0.64)
    # Star: from a leaf to the hub, W = 1/sqrt(d) and p = 1; from the hub to a leaf, W / p = sqrt(d).
    c = theory.load_constant(star_graph(9), F, 0.0, telescoped=False)
    assert c == pytest.approx(1.0 + 0.5 * 3 + 0.25 * 9)
    a = tm.Graph.from_edges([(0, 1)], weights=[4.0])
    assert theory.load_constant(a, F, 0.0, "none") == pytest.approx(1.0 + 0.5 * 4 + 0.25 * 16)


def test_telescoped_constant():
    assert theory.load_constant(star_graph(9), F, 0.0) == pytest.approx(1.0 + 0.5 * 3 + 0.25 * 3)
    assert theory.load_constant(directed_graph(), F, 0.5) == pytest.approx(1.0 + 0.5 * 2 + 0.25 * 4)
    # Degrees are compared within components; isolated nodes do not matter.
    two = tm.Graph.batch([tm.cycle_graph(4), star_graph(4), tm.path_graph(1)])
    assert theory.load_constant(two, F, 0.0) == pytest.approx(1.0 + 0.5 * 2 + 0.25 * 2)
    assert theory.load_constant(tm.Graph.from_edges([], 3), F, 0.0) >= 1.0


@pytest.mark.parametrize("normalization", ["sym", "row", "none"])
@pytest.mark.parametrize("telescoped", [True, False])
def test_no_walk_leaves_more_than_the_constant(normalization, telescoped):
    graph = ragged_graph()
    c = theory.load_constant(graph, F, 0.3, normalization, telescoped=telescoped)
    totals = []
    for seed in range(50):
        features = tm.sample_features(
            graph, 1, 2, 0.3, "iid", seed=seed, normalization=normalization, dtype=torch.float64
        )
        totals.append(features.to_dense(F.abs())[0].sum(1).max())
    assert max(totals) <= c + 1e-12


def test_deviation_bound_and_its_inverses():
    assert theory.deviation_bound(2.0, 10, 1.2) == pytest.approx(2 * math.exp(-4.0 * 1000 / (2 * 361 * 1.2**4)))
    assert theory.deviation_bound(0.0, 10, 1.0) == 1.0
    t = theory.deviation_quantile(0.05, 37, 1.4)
    assert theory.deviation_bound(t, 37, 1.4) == pytest.approx(0.05)


@pytest.mark.parametrize("c", [0.4, 1.0, 2.0])
@pytest.mark.parametrize("t", [0.05, 0.5, 3.0])
@pytest.mark.parametrize("probability", [0.5, 0.05, 1e-6])
def test_required_walks_is_the_smallest(c, t, probability):
    found = theory.required_walks(t, probability, c)
    assert theory.deviation_bound(t, found, c) <= probability
    smaller = range(1, min(found, 2000))
    assert all(theory.deviation_bound(t, n, c) > probability for n in smaller)
    if found > 2000:
        assert theory.deviation_bound(t, found - 1, c) > probability


def test_the_bound_is_not_monotone():
    assert theory.deviation_bound(1.0, 2, 0.8) > theory.deviation_bound(1.0, 1, 0.8)


def test_sparsity_bound():
    assert theory.sparsity_bound(20, 0.0, 10) == 201
    b = math.log(1 - 0.95 ** (1 / 4)) / math.log(0.5)
    assert theory.sparsity_bound(4, 0.5, 100) == 4 * math.floor(b) + 1
    assert theory.sparsity_bound(4, 0.01, 5) == 21
    for halt_prob in (0.0, 0.5):
        coupling = "iid" if halt_prob else "repelling"
        features = tm.sample_features(tm.grid_graph(20, 20), 4, 12, halt_prob, coupling)
        nonzeros = features.row_ptr.diff().double()
        bound = theory.sparsity_bound(4, halt_prob, 12)
        assert (nonzeros > bound).double().mean() <= 0.05
        print(f"halt {halt_prob}: bound {bound}, 95 % quantile {nonzeros.quantile(0.95):.0f}")


def test_bounds_refuse_couplings_they_do_not_cover():
    for coupling in ("repelling", "antithetic"):
        for call in (
            lambda c=coupling: theory.deviation_bound(0.1, 4, 1.0, c),
            lambda c=coupling: theory.deviation_quantile(0.1, 4, 1.0, c),
            lambda c=coupling: theory.required_walks(0.1, 0.05, 1.0, c),
            lambda c=coupling: theory.sparsity_bound(4, 0.1, 3, coupling=c),
        ):
            with pytest.raises(ValueError, match="independent walkers"):
                call()


def test_variance_warning():
    f = torch.exp(-0.01 * torch.arange(101.0))
    assert theory.variance_inflation(f, 0.0) == pytest.approx(1.0)
    with pytest.warns(UserWarning, match="second moment"):
        tm.WalkMask(tm.path_graph(4), num_walks=2, max_length=100, coupling="iid", halt_prob=0.1, f=f)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tm.WalkMask(tm.path_graph(4), num_walks=2, max_length=10, coupling="iid", halt_prob=0.1, f=f[:11])


@pytest.mark.parametrize(
    "call",
    [
        lambda: theory.load_constant(tm.path_graph(3), F[None], 0.0),
        lambda: theory.load_constant(tm.path_graph(3), F, 1.0),
        lambda: theory.required_walks(0.0, 0.05, 1.0),
        lambda: theory.required_walks(0.1, 1.5, 1.0),
        lambda: theory.required_walks(0.1, 0.5, math.inf),
        lambda: theory.deviation_quantile(0.1, 0, 1.0),
        lambda: theory.sparsity_bound(0, 0.1, 3),
        lambda: theory.deviation_bound(0.1, 3, 0.0),
        lambda: theory.sparsity_bound(4, 0.1, 3, delta=0.0),
    ],
)
def test_bad_arguments_are_named(call):
    with pytest.raises(ValueError, match="must"):
        call()


def test_degrees_do_not_overflow_the_constant():
    graph = tm.Graph.from_edges([(0, 1), (1, 2)], weights=[1e-300, 1e300])
    assert np.isfinite(theory.load_constant(graph, F, 0.0))


def test_required_walks_beyond_64_bits():
    assert theory.required_walks(1e-12, 0.05, 10.0) == 295110356329114886990622230054
