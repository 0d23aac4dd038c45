"""Are resampled frontiers unbiased, at every length and in products of independent ensembles?

The z-tests have a family-wise false-fail rate of 1e-6 (Bonferroni over all functionals of a test, Student's law), and
their power is asserted: resamplers with a mistake must fail them.
"""

import numpy as np
import pytest
import torch

import topomask as tm
from helpers.estimates import functionals, powers, threshold, z_scores
from helpers.frontiers import hubs_graph
from helpers.graphs import directed_graph, ragged_graph, signed_graph, star_graph
from topomask.ops.expand_frontiers import reference

NUM_SEEDS = 400
MAX_LENGTH = 4

CASES = {
    "sym": (ragged_graph, 3, {}),
    "sym, one entry": (ragged_graph, 1, {}),
    "sym signed": (signed_graph, 2, {}),
    "none": (ragged_graph, 3, {"normalization": "none"}),
    "row": (ragged_graph, 2, {"normalization": "row"}),
    "row directed": (directed_graph, 1, {}),
    "none directed": (directed_graph, 2, {"normalization": "none"}),
    "hubs": (lambda: hubs_graph(30), 5, {}),
    "star": (lambda: star_graph(12), 4, {}),
    "grid": (lambda: tm.grid_graph(5, 5), 6, {}),
    "small grid": (lambda: tm.grid_graph(2, 3), 2, {}),
    "small star": (lambda: star_graph(5), 2, {}),
}


def loads(graph: tm.Graph, width: int, seed: int, ensemble: str, **settings) -> torch.Tensor:
    """Dense loads, [L + 1, N, N]."""
    features = tm.expand_features(graph, width, MAX_LENGTH, prune="resample", seed=seed, ensemble=ensemble, **settings)
    dense = features.dense_loads()[0].to(torch.float64)
    return dense.view(MAX_LENGTH + 1, graph.num_nodes, graph.num_nodes)


def scores(case: str) -> torch.Tensor:
    make, width, settings = CASES[case]
    graph = make()
    generator = torch.Generator().manual_seed(11)
    u, v = torch.rand(2, graph.num_nodes, generator=generator, dtype=torch.float64) + 0.5
    f = torch.tensor([1.0, 0.8, -0.5, 0.6, 0.4], dtype=torch.float64)
    symmetric = not graph.directed
    samples = []
    for seed in range(NUM_SEEDS):
        query = loads(graph, width, seed, "query", **settings)
        key = loads(graph, width, seed, "key", **settings) if symmetric else None
        samples.append(functionals(query, key, f, u, v))
    exact = powers(graph, settings.get("normalization"), MAX_LENGTH)
    truth = functionals(exact, exact if symmetric else None, f, u, v)
    # Loads are rounded to float32.
    return z_scores(torch.stack(samples), truth, rounding=1e-6 * float(truth.abs().max()))


def check_unbiased(case: str, factor: float = 1.0) -> None:
    found = scores(case)
    assert (found > 0).any(), "something is drawn"
    assert found.max() < factor * threshold(len(found), NUM_SEEDS), found


@pytest.mark.parametrize("case", CASES)
def test_unbiased(case):
    check_unbiased(case)


def keeps_no_threshold(values, ties, count, draw):
    """Thinned entries keep their own value, not the threshold."""
    out = reference_thin(values, ties, count, draw)
    return np.where(out != 0, values, 0.0)


def keeps_the_largest(values, ties, count, draw):
    order = np.lexsort((ties, -np.abs(values)))
    out = np.zeros_like(values)
    out[order[:count]] = values[order[:count]]
    return out


def draws_from_half_the_range(values, ties, count, draw):
    return reference_thin(values, ties, count, draw / 2)


reference_thin = reference.thin


@pytest.mark.parametrize("mistake", [keeps_no_threshold, keeps_the_largest, draws_from_half_the_range])
@pytest.mark.parametrize("case", ["small grid", "small star"])
def test_the_test_of_bias_has_power(monkeypatch, mistake, case):
    """In frontiers, and at a hub."""
    monkeypatch.setenv("TOPOMASK_BACKEND", "reference")
    monkeypatch.setattr(reference, "thin", mistake)
    with pytest.raises(AssertionError):
        check_unbiased(case, factor=1.5)


def test_a_shared_ensemble_biases_the_diagonal():
    """Why queries and keys draw independently."""
    graph, f = tm.grid_graph(4, 4), 0.5 ** torch.arange(5, dtype=torch.float64)
    exact = torch.einsum("l,lij->ij", f, powers(graph, "sym", MAX_LENGTH))
    for shared in (True, False):
        traces = []
        for seed in range(NUM_SEEDS):
            query = torch.einsum("l,lij->ij", f, loads(graph, 4, seed, "query"))
            key = query if shared else torch.einsum("l,lij->ij", f, loads(graph, 4, seed, "key"))
            traces.append((query @ key.mT).trace())
        found = torch.stack(traces)
        score = float((found.mean() - (exact @ exact).trace()) / (found.std() / NUM_SEEDS**0.5))
        assert (score > 20) if shared else (abs(score) < threshold(1, NUM_SEEDS)), score


def test_heads_are_independent():
    """The mean of the product of two heads is the product of their means."""
    graph, f = tm.grid_graph(4, 4), 0.5 ** torch.arange(5, dtype=torch.float64)
    exact = torch.einsum("l,lij->ij", f, powers(graph, "sym", MAX_LENGTH))
    features = tm.expand_features(graph, 4, MAX_LENGTH, prune="resample", num_heads=2 * NUM_SEEDS)
    heads = features.to_dense(f).view(NUM_SEEDS, 2, 16, 16)
    traces = (heads[:, 0] @ heads[:, 1].mT).diagonal(dim1=1, dim2=2).sum(dim=1)
    found = z_scores(traces[:, None], (exact @ exact).trace()[None])
    assert found.max() < threshold(1, NUM_SEEDS)
