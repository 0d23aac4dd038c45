"""Bounds on the errors of pruned frontiers: they hold on every row, and go where the features go."""

import copy
import dataclasses
import io

import numpy as np
import pytest
import torch

import topomask as tm
from helpers.estimates import powers
from helpers.frontiers import GRAPHS, hubs_graph, random_graph
from helpers.walk_features import assert_same
from topomask.walks import WalkFeatures, checkpoint
from topomask.walks.recipe import WalkRecipe


def errors_and_bounds(
    features: WalkFeatures, exact: torch.Tensor, f: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Distances of rows in the norm that the bound is in, [R], and the bounds."""
    difference = features.to_dense(f)[0].double() - torch.einsum("l,lij->ij", f.double(), exact)
    return difference.norm(dim=1, p=2 if features.normalization == "sym" else 1), features.error_bound(f)


def check_certificate(graph: tm.Graph, seed: int, normalization: str) -> None:
    """Every row, for f with and without signs, in float32 and float64, whatever is pruned."""
    rng = np.random.default_rng(seed)
    max_length = int(rng.integers(0, 8))
    exact = powers(graph, normalization, max_length)
    options = {"normalization": normalization, "max_length": max_length}
    weights = rng.random(max_length + 1) * (rng.random(max_length + 1) < 0.8)
    kinds = [{}, {"max_entries": int(rng.integers(1, 30))}, {"max_entries": 10**6}, {"length_weights": weights}]
    for kind in kinds:
        features = tm.expand_features(graph, int(rng.integers(1, 15)), **options, **kind)
        modulations = [0.5 ** np.arange(max_length + 1), rng.normal(size=max_length + 1), *np.eye(max_length + 1)]
        for f in map(torch.from_numpy, modulations):
            for dtype in (torch.float32, torch.float64):
                error, bound = errors_and_bounds(features, exact, f.to(dtype))
                # Powers of W and the norm of the difference are rounded, too.
                slack = 1e-13 * torch.einsum("l,lij->i", f.abs(), exact.abs())
                assert (error <= bound + slack).all(), (seed, normalization, kind)


@pytest.mark.parametrize("name", GRAPHS)
def test_the_bound_holds(name):
    make, normalizations = GRAPHS[name]
    for normalization in normalizations:
        for seed in range(3):
            check_certificate(make(), seed, normalization)


def check_random_graph(seed: int) -> None:
    graph = random_graph(seed)
    for normalization in ("row", "none") if graph.directed else ("sym", "row", "none"):
        check_certificate(graph, seed, normalization)


def test_the_bound_holds_on_random_graphs():
    for seed in range(150):
        check_random_graph(seed)


@pytest.mark.slow
def test_the_bound_holds_on_a_thousand_random_graphs():
    for seed in range(1000, 2000):
        check_random_graph(seed)


@pytest.mark.parametrize("width", [12, 46])
@pytest.mark.parametrize("name", ["0.5^k", "exp(-0.01 k)"])
def test_the_bound_is_tight_on_a_grid(name, width):
    """On a 20 x 20 grid it is 1.4 to 2.4 times what it bounds: the root of the sum of squares over all rows."""
    graph, lengths = tm.grid_graph(20, 20), torch.arange(11, dtype=torch.float64)
    f = 0.5**lengths if name == "0.5^k" else torch.exp(-0.01 * lengths)
    error, bound = errors_and_bounds(tm.expand_features(graph, width, 10), powers(graph, "sym", 10), f)
    print(f"{name}, width {width}: {bound.norm() / error.norm():.2f} times loose")
    assert 1.35 < bound.norm() / error.norm() < 2.45
    assert (bound < 2.6 * error).all()


def test_a_dropped_edge_is_what_the_bound_says():
    """A path of unequal weights, by hand: two of three entries of the first step are kept, one is dropped."""
    graph = tm.Graph.from_edges([(0, 1), (0, 2), (0, 3)], weights=[5.0, 4.0, 1.0], directed=True)
    features = tm.expand_features(graph, 2, 1, max_entries=2)
    # One of the two columns is the start node, so the second entry is lost as well.
    for length, lost in ((0, 0.0), (1, 0.5)):
        f = torch.eye(2, dtype=torch.float64)[length]
        kept = 1.0 if length == 0 else 0.5
        assert features.error_bound(f)[0] == pytest.approx(lost + 2.0**-24 * 4 * kept, rel=1e-12)


def test_shapes_and_gradients():
    features = tm.expand_features(tm.grid_graph(4, 4), 4, 3)
    f = torch.rand(3, 4, requires_grad=True)
    assert features.error_bound(f[0]).shape == (16,)
    bound = features.error_bound(f)
    assert bound.shape == (3, 16)
    assert bound.dtype == torch.float64
    torch.testing.assert_close(bound[1], features.error_bound(f[1]))
    bound.sum().backward()
    assert (f.grad > 0).all()
    with pytest.raises(ValueError, match="one number per walk length"):
        features.error_bound(f[:, :3])


def test_what_is_not_certified_says_so():
    graph = tm.grid_graph(4, 4)
    certified = tm.expand_features(graph, 4, 3)
    made = WalkFeatures(
        **{name: getattr(certified, name) for name in ("row_ptr", "columns", "entry_ptr", "lengths", "loads")},
        **{name: getattr(certified, name) for name in ("num_heads", "num_columns", "max_length", "normalization")},
    )
    changed = dataclasses.replace(certified, loads=2 * certified.loads)
    resampled = tm.expand_features(graph, 4, 3, prune="resample")
    for features in (tm.sample_features(graph, max_length=3), resampled, made, changed):
        with pytest.raises(ValueError, match=r"no bound on their error: .* prune='largest'"):
            features.error_bound(torch.ones(4))
        assert len(features.unreached) == 0
        assert len(features.state()) == 6


def test_the_certificate_goes_with_the_rows():
    graphs = [hubs_graph(30), tm.path_graph(1), tm.grid_graph(4, 5)]
    parts = [tm.expand_features(graph, 4, 3) for graph in graphs]
    f = torch.tensor([1.0, 0.5, 0.3, 0.2])
    bounds = [part.error_bound(f) for part in parts]
    batch = WalkFeatures.batch(parts)
    assert torch.equal(batch.error_bound(f), torch.cat(bounds))
    for part, bound in zip(batch.split([30, 1, 20]), bounds, strict=True):
        assert torch.equal(part.error_bound(f), bound)
    assert torch.equal(batch.rows([3, 0, 40]).error_bound(f), torch.cat(bounds)[[3, 0, 40]])
    with pytest.raises(ValueError, match="mixes certified features with others"):
        WalkFeatures.batch([parts[0], tm.sample_features(graphs[1], max_length=3)])


def test_the_certificate_is_moved_copied_and_saved():
    features = tm.expand_features(hubs_graph(30), 4, 3)
    f = torch.ones(4, dtype=torch.float64)
    bound = features.error_bound(f)
    file = io.BytesIO()
    torch.save(features.state(), file)
    file.seek(0)
    saved = WalkFeatures.from_state(torch.load(file, weights_only=True))
    for other in (copy.deepcopy(features), saved, features.to(dtype=torch.float64)):
        assert torch.equal(other.error_bound(f), bound)
    assert all(tensor.is_meta for tensor in features.to("meta")._certificate)
    assert features.num_bytes == sum(x.nbytes for name, x in features.state().items() if name != "sizes")


def test_the_fingerprint_does_not_depend_on_bounds():
    """They follow from the rest, and two backends may round them differently."""
    features = tm.expand_features(hubs_graph(30), 4, 3)
    state = features.state()
    state["bounds"] = state["bounds"] * (1 + 1e-15)
    assert WalkFeatures.from_state(state).fingerprint == features.fingerprint


DAMAGED = {
    "one is missing": lambda state: state.pop("unreached"),
    "too few": lambda state: state.update(bounds=state["bounds"][:-1]),
    "other precision": lambda state: state.update(bounds=state["bounds"].float()),
    "negative": lambda state: state["bounds"].neg_(),
    "not a number": lambda state: state["bounds"].fill_(float("nan")),
    "infinite": lambda state: state["bounds"].fill_(float("inf")),
    "flags": lambda state: state["unreached"].fill_(2),
    "more flags": lambda state: state.update(unreached=torch.zeros(7, dtype=torch.uint8)),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_certificates_are_refused(name):
    state = tm.expand_features(tm.grid_graph(4, 4), 3, 3).state()
    DAMAGED[name](state)
    with pytest.raises(ValueError, match="stored walks"):
        WalkFeatures.from_state(state)


@pytest.mark.parametrize("symmetric", [False, True])
def test_the_certificate_is_in_checkpoints(symmetric):
    graph = tm.grid_graph(4, 5)
    recipe = WalkRecipe(
        num_walks=20,
        max_length=3,
        halt_prob=0.0,
        coupling="repelling",
        num_heads=1,
        normalization=None,
        symmetric=symmetric,
        shared_walks=False,
        shared_heads=False,
        seed=0,
    )
    features = tm.expand_features(graph, 4, 3)
    state = checkpoint.write(recipe, graph, (features, features) if symmetric else features, save_walks=True)
    _, found, fingerprints = checkpoint.read(state, recipe, graph)
    sides = found if symmetric else (found,)
    assert fingerprints == [features.fingerprint] * len(sides)
    for side in sides:
        assert_same(side, features)
        assert torch.equal(side.error_bound(torch.ones(4)), features.error_bound(torch.ones(4)))
