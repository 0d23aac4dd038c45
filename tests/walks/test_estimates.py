"""Are the estimates unbiased, how fast do they converge, and how good are the couplings?

The z-tests below have a family-wise false-fail rate of 1e-6 (Bonferroni over all functionals of a test, Student's law),
and their power is asserted: two samplers with a mistake must fail them.
"""

import numpy as np
import pytest
import torch

import topomask as tm
from experiments.estimates import convergence, mask_errors
from helpers.estimates import functionals, powers, threshold, z_scores
from helpers.graphs import directed_graph, ragged_graph, signed_graph

NUM_SEEDS = 400
MAX_LENGTH = 4

CASES = {
    "sym repelling": (ragged_graph, dict(coupling="repelling")),
    "sym repelling halting": (ragged_graph, dict(coupling="repelling", halt_prob=0.2)),
    "sym antithetic": (ragged_graph, dict(coupling="antithetic", halt_prob=0.2)),
    "sym iid": (ragged_graph, dict(coupling="iid", halt_prob=0.2)),
    "sym signed": (signed_graph, dict(coupling="iid")),
    "none": (ragged_graph, dict(coupling="repelling", normalization="none")),
    "row directed": (directed_graph, dict(coupling="repelling", halt_prob=0.1)),
    "none directed": (directed_graph, dict(coupling="iid", normalization="none")),
}


def loads(graph: tm.Graph, seed: int, ensemble: str, **settings) -> torch.Tensor:
    """Dense loads, [L + 1, N, N]."""
    features = tm.sample_features(
        graph, num_walks=4, max_length=MAX_LENGTH, seed=seed, ensemble=ensemble, dtype=torch.float64, **settings
    )
    return torch.stack([features.to_dense(row)[0] for row in torch.eye(MAX_LENGTH + 1, dtype=torch.float64)])


def sample(case: str, spoil=lambda loads, graph: loads) -> tuple[torch.Tensor, torch.Tensor]:
    make, settings = CASES[case]
    graph = make()
    generator = torch.Generator().manual_seed(11)
    u, v = torch.rand(2, graph.num_nodes, generator=generator, dtype=torch.float64) + 0.5
    f = torch.tensor([1.0, 0.8, -0.5, 0.6, 0.4], dtype=torch.float64)
    symmetric = not graph.directed
    samples = []
    for seed in range(NUM_SEEDS):
        query = spoil(loads(graph, seed, "query", **settings), graph)
        key = spoil(loads(graph, seed, "key", **settings), graph) if symmetric else None
        samples.append(functionals(query, key, f, u, v))
    exact = powers(graph, settings.get("normalization"), MAX_LENGTH)
    return torch.stack(samples), functionals(exact, exact if symmetric else None, f, u, v)


@pytest.mark.parametrize("case", CASES)
def test_unbiased(case):
    samples, truth = sample(case)
    scores = z_scores(samples, truth)
    assert scores.max() < threshold(len(truth), NUM_SEEDS), scores


def forgets_transition_probabilities(loads: torch.Tensor, graph: tm.Graph) -> torch.Tensor:
    s = torch.from_numpy(np.where(graph.degrees > 0, graph.degrees, 1.0))
    return torch.cat([loads[:1], loads[1:] * (s[None] / s[:, None]).sqrt()])


def forgets_survival(loads: torch.Tensor, graph: tm.Graph) -> torch.Tensor:
    return loads * 0.8 ** torch.arange(len(loads))[:, None, None]


@pytest.mark.parametrize("mistake", [forgets_transition_probabilities, forgets_survival])
def test_the_test_of_bias_has_power(mistake):
    samples, truth = sample("sym iid", spoil=mistake)
    scores = z_scores(samples, truth)
    assert scores.max() > 1.5 * threshold(len(truth), NUM_SEEDS), scores


def test_shared_walks_bias_the_diagonal_upwards():
    """Why queries and keys walk independently by default."""
    graph = tm.grid_graph(4, 4)
    f = 0.5 ** torch.arange(5, dtype=torch.float64)
    truth = tm.PowerSeriesMask(graph, tm.convolve(f)).to_dense()[0].trace().detach()
    options = dict(num_walks=4, max_length=4, coupling="iid", f=f)
    for shared in (True, False):
        masks = [tm.WalkMask(graph, **options, shared_walks=shared, seed=seed) for seed in range(NUM_SEEDS)]
        traces = torch.stack([mask.to_dense()[0].trace() for mask in masks]).detach()
        score = float((traces.mean() - truth) / (traces.std() / NUM_SEEDS**0.5))
        assert (score > 20) if shared else (abs(score) < threshold(1, NUM_SEEDS)), score


def test_error_of_iid_walks_falls_as_one_over_the_root_of_walkers():
    """Slope -0.5 +- 0.05 from 32 to 1,024 walkers, and the 95 % quantile of entries below the bound of Thm 3.1."""
    f = 0.5 ** torch.arange(7, dtype=torch.float64)
    found = convergence(tm.grid_graph(6, 6), f, [2**k for k in range(5, 11)], halt_prob=0.1, num_seeds=6)
    for num_walks, quantile, bound in zip(found.num_walks, found.quantiles, found.bounds, strict=True):
        print(f"{num_walks} walkers: 95 % within {quantile:.2e}, bound {bound:.2e}, {bound / quantile:.0f} x loose")
        assert quantile < bound
    assert abs(found.slope + 0.5) < 0.05, found.slope


LENGTHS = torch.arange(11, dtype=torch.float64)
COUPLINGS = {
    "grid 20 walks, f = 0.5^k": (tm.grid_graph(16, 16), 20, 0.5**LENGTHS, 4.0),
    "grid 100 walks, f = exp(-0.01 k)": (tm.grid_graph(16, 16), 100, torch.exp(-0.01 * LENGTHS), 4.0),
    "grid 100 walks, f = 0.5^k": (tm.grid_graph(16, 16), 100, 0.5**LENGTHS, 4.0),
    "3-NN 27 walks, 3 hops": (
        tm.knn_graph(np.random.default_rng(0).random((1024, 3)), 3),
        27,
        torch.tensor([1.0, 0.7, 0.5, 0.3], dtype=torch.float64),
        3.0,
    ),
}


@pytest.mark.parametrize("case", COUPLINGS)
def test_repelling_walks_beat_the_papers(case):
    """Error of repelling walks of fixed length against i.i.d. walks that halt with probability 0.1; 5 seeds."""
    graph, num_walks, f, factor = COUPLINGS[case]
    iid = np.mean(mask_errors(graph, f, num_walks, range(5), coupling="iid", halt_prob=0.1))
    repelling = np.mean(mask_errors(graph, f, num_walks, range(5), coupling="repelling"))
    assert iid > factor * repelling, (iid, repelling)


def test_antithetic_halting_reduces_variance():
    """Paired lengths help where lengths themselves are what is counted: the number of steps in all.

    With f = 1, where long walks count 1 / S(l), the spread falls by less than a tenth.
    """
    graph, f = tm.cycle_graph(12), 0.5 ** torch.arange(7, dtype=torch.float64)
    spread = {}
    for coupling in ("iid", "antithetic"):
        totals = [
            tm.sample_features(graph, 8, 6, 0.5, coupling, seed=seed, dtype=torch.float64).values(f).sum()
            for seed in range(200)
        ]
        spread[coupling] = float(torch.stack(totals).std())
    # The ratio of two standard deviations of 200 draws strays from 1 by 5 % or so.
    assert spread["antithetic"] < 0.8 * spread["iid"], spread
