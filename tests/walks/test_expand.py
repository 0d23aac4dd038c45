import re

import numpy as np
import pytest
import torch

import topomask as tm
from helpers.estimates import powers
from helpers.frontiers import GRAPHS, hubs_graph, random_graph, settings_of
from helpers.graphs import directed_graph, ragged_graph, signed_graph, star_graph
from helpers.walk_features import assert_same
from topomask.walks import WalkFeatures

ROUNDING = 2e-7
PRUNES = ["largest", "resample"]


def dense_loads(features: WalkFeatures) -> torch.Tensor:
    """Loads [L + 1, R, N] of the first head, in float64."""
    dense = features.dense_loads()[0].to(torch.float64)
    return dense.view(features.max_length + 1, features.num_rows, features.num_columns)


@pytest.mark.parametrize("prune", PRUNES)
@pytest.mark.parametrize("name", GRAPHS)
def test_wide_frontiers_are_exact(name, prune):
    """Against dense powers of W, in float64."""
    make, normalizations = GRAPHS[name]
    graph = make()
    for normalization in normalizations:
        features = tm.expand_features(graph, 10**9, 5, prune=prune, normalization=normalization, seed=3)
        expected = powers(graph, normalization, 5)
        found = dense_loads(features)
        scale = expected.abs().amax(dim=(1, 2), keepdim=True).clamp(min=1.0)
        assert ((found - expected).abs() <= ROUNDING * scale).all()
        # Nothing was drawn, and nothing was lost.
        assert_same(tm.expand_features(graph, 10**9, 5, prune=prune, normalization=normalization, seed=4), features)
        if prune == "largest":
            assert torch.equal(features.unreached, torch.empty(0, dtype=torch.int64))
            norms = expected.norm(dim=2, p=2 if normalization == "sym" else 1)
            slack = features.error_bound(torch.eye(6)) - norms * 2.0**-24 * 8
            assert (slack.abs() <= 1e-6 * norms + 1e-12).all()


def plain_largest(graph: tm.Graph, normalization: str, width: int, max_length: int, max_entries: int) -> np.ndarray:
    """The definition, dense, for graphs where no two entries are equally large; without hubs."""

    def keep(x: np.ndarray, count: int) -> np.ndarray:
        smallest = -np.sort(-np.abs(x), axis=1)[:, min(count, x.shape[1]) - 1 :][:, :1]
        return np.where(np.abs(x) >= smallest, x, 0.0)

    w = graph.adjacency(normalization).toarray()
    loads = [np.eye(len(w))]
    for _ in range(max_length):
        loads.append(keep(loads[-1] @ w, width))
    scores = sum(0.8**length * np.abs(x) for length, x in enumerate(loads)) + 1e3 * np.eye(len(w))
    return np.stack(loads) * (keep(scores, max_entries) != 0)


@pytest.mark.parametrize("normalization", ["sym", "row", "none"])
@pytest.mark.parametrize(("width", "max_entries"), [(9, 5), (9, 9), (12, 40)])
def test_the_largest_entries_are_kept(normalization, width, max_entries):
    rng = np.random.default_rng(0)
    grid = tm.grid_graph(7, 8).to_scipy().tocoo()
    upper = grid.row < grid.col
    edges = np.stack([grid.row, grid.col])[:, upper]
    signs = rng.choice([-1.0, 1.0], edges.shape[1])
    graph = tm.Graph.from_edges(edges, 56, signs * rng.uniform(0.5, 2.0, edges.shape[1]), signed=True)
    features = tm.expand_features(graph, width, 6, max_entries=max_entries, normalization=normalization)
    expected = torch.from_numpy(plain_largest(graph, normalization, width, 6, max_entries))
    found = dense_loads(features)
    assert torch.equal(found != 0, expected != 0)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_hubs_pass_on_to_their_largest_neighbours():
    """A star with unequal weights, whose centre has more neighbours than a frontier has entries."""
    weights = np.arange(1.0, 11.0)
    graph = tm.Graph.from_edges([(0, j) for j in range(1, 11)], weights=weights)
    features = tm.expand_features(graph, 3, 2, normalization="row", max_entries=11)
    first = dense_loads(features)[1, 0].numpy()
    np.testing.assert_allclose(first[8:], weights[-3:] / 55, rtol=1e-6)
    assert (first[:8] == 0).all()
    np.testing.assert_allclose(features.error_bound(torch.eye(3))[1, 0], 28 / 55, rtol=1e-5)
    # A leaf goes to the centre, and from there to three leaves and, if it is not one of them, not back.
    np.testing.assert_allclose(dense_loads(features)[2, 1].numpy().nonzero()[0], [8, 9, 10])


@pytest.mark.parametrize("prune", PRUNES)
def test_structure(prune):
    graph = tm.Graph.batch([hubs_graph(60), ragged_graph()])
    heads = 3 if prune == "resample" else 1
    features = tm.expand_features(graph, 6, 5, prune=prune, num_heads=heads)
    assert features.lengths.dtype == torch.uint8
    assert features.loads.dtype == torch.float32
    rows = torch.repeat_interleave(torch.arange(71 * heads), features.row_ptr.diff())
    assert ((rows * 71 + features.columns).diff() > 0).all(), "columns ascend in every row"
    entries = torch.repeat_interleave(torch.arange(features.num_nonzeros), features.entry_ptr.diff())
    assert ((entries * 100 + features.lengths).diff() > 0).all(), "lengths ascend in every column"
    for head in features.dense_loads().view(heads, 6, 71, 71):
        assert torch.equal(head[0], torch.eye(71))
        assert ((head != 0).sum(dim=2) <= 6).all()
    if prune == "largest":
        assert (features.row_ptr.diff() <= 6).all()
    # The validation of tensors finds nothing.
    names = ("num_heads", "num_columns", "max_length", "normalization", "row_ptr", "columns", "entry_ptr", "lengths")
    assert_same(
        WalkFeatures(**{name: getattr(features, name) for name in (*names, "loads")}), features_without(features)
    )


def features_without(features: WalkFeatures) -> WalkFeatures:
    state = {name: x for name, x in features.state().items() if name not in ("bounds", "unreached")}
    return WalkFeatures.from_state(state)


@pytest.mark.parametrize("prune", PRUNES)
@pytest.mark.parametrize("normalization", ["sym", "none"])
def test_batches_start_nodes_and_heads_do_not_matter(prune, normalization):
    parts = [tm.path_graph(1), hubs_graph(50), tm.cycle_graph(5), tm.grid_graph(4, 5)]
    options = {"prune": prune, "normalization": normalization, "seed": 4, "ensemble": "key"}
    options |= {"num_heads": 2} if prune == "resample" else {"max_entries": 9}
    one_by_one = [tm.expand_features(part, 6, 5, **options) for part in parts]
    whole = tm.expand_features(tm.Graph.batch(parts), 6, 5, **options)
    assert_same(WalkFeatures.batch(one_by_one), whole)
    for found, part in zip(whole.split([part.num_nodes for part in parts]), one_by_one, strict=True):
        assert_same(found, part)
    nodes = [5, 0, 3, 3]
    assert_same(tm.expand_features(parts[1], 6, 5, start_nodes=nodes, **options), one_by_one[1].rows(nodes))
    assert tm.expand_features(parts[1], 6, 5, start_nodes=[], **options).num_rows == 0


@pytest.mark.parametrize("normalization", [None, "none"])
@pytest.mark.parametrize("prune", PRUNES)
@pytest.mark.parametrize(
    "make", [lambda: tm.grid_graph(9, 10), hubs_graph, lambda: random_graph(3, 60, True), lambda: random_graph(1, 80)]
)
def test_a_part_of_a_graph_gives_rows_of_the_whole(make, prune, normalization):
    graph = tm.Graph.batch([make(), ragged_graph() if not make().directed else directed_graph()])
    options = {"prune": prune, "seed": 9, "normalization": normalization}
    whole = tm.expand_features(graph, 5, 3, **options)
    is_smaller = []
    for nodes in ([0, 1, 7], [40]):
        seen = graph.neighborhood(nodes, num_hops=3)
        known = {(g, i): k for k, (g, i) in enumerate(zip(graph.graph_index, graph.ids, strict=True))}
        columns = torch.tensor([known[(0, i)] for i in seen.ids])
        starts = [int((columns == node).nonzero()) for node in nodes]
        part, rows = tm.expand_features(seen, 5, 3, start_nodes=starts, **options), whole.rows(nodes)
        is_smaller.append(seen.num_nodes < graph.num_nodes - 7)
        assert torch.equal(columns[part.columns], rows.columns)
        assert torch.equal(part.loads, rows.loads)
        assert torch.equal(part.row_ptr, rows.row_ptr)
        if prune == "largest":
            bounds = [features.error_bound(torch.ones(4)) for features in (part, rows)]
            # Without normalisation the largest row sum is that of the part.
            assert torch.equal(*bounds) if normalization is None else (bounds[0] <= bounds[1]).all()
    assert any(is_smaller)


def test_backends_give_the_same_features(monkeypatch):
    graph = hubs_graph(60)
    compiled = [tm.expand_features(graph, 7, 4, prune=prune) for prune in PRUNES]
    monkeypatch.setenv("TOPOMASK_BACKEND", "reference")
    for prune, features in zip(PRUNES, compiled, strict=True):
        assert_same(tm.expand_features(graph, 7, 4, prune=prune), features)


def test_draws_depend_on_seed_head_and_ensemble():
    graph = tm.grid_graph(6, 6)

    def draw(**options) -> WalkFeatures:
        return tm.expand_features(graph, 5, 4, prune="resample", **options)

    base = draw(seed=1)
    assert base.fingerprint == draw(seed=1).fingerprint
    two = draw(seed=1, num_heads=2)
    assert torch.equal(two.to_dense(torch.ones(5))[0], base.to_dense(torch.ones(5))[0])
    others = [draw(seed=2), draw(seed=1, ensemble="key")]
    denses = [base.to_dense(torch.ones(5))[0], two.to_dense(torch.ones(5))[1]]
    denses += [other.to_dense(torch.ones(5))[0] for other in others]
    assert not any(torch.equal(a, b) for k, a in enumerate(denses) for b in denses[:k])


def test_the_largest_entries_depend_on_no_draw():
    graph = tm.grid_graph(6, 6)
    assert_same(tm.expand_features(graph, 5, 4, seed=1), tm.expand_features(graph, 5, 4, seed=2, ensemble="key"))


@pytest.mark.parametrize("make", [lambda: tm.grid_graph(14, 14), lambda: hubs_graph(200)])
@pytest.mark.parametrize("name", ["0.5^k", "flat"])
def test_the_numbers_of_nodes_hardly_matter(make, name):
    """Over 10 random relabellings, where most entries of a frontier are as large as others, errors vary by 2 %."""
    graph, lengths = make(), torch.arange(11, dtype=torch.float64)
    f = 0.5**lengths if name == "0.5^k" else torch.exp(-0.01 * lengths)
    exact = torch.einsum("l,lij->ij", f, powers(graph, "sym", 10))
    errors = []
    for seed in range(10):
        order = np.random.default_rng(seed).permutation(graph.num_nodes)
        moved = tm.Graph.from_scipy(graph.to_scipy()[order][:, order])
        found = tm.expand_features(moved, 16, 10).to_dense(f)[0]
        errors.append(float((found - exact[order][:, order]).norm() / exact.norm()))
    print(f"errors from {min(errors):.5f} to {max(errors):.5f}")
    assert max(errors) <= 1.02 * min(errors)


def test_symmetric_features_are_symmetric_and_positive():
    """Phi Phi^T for any f, also one with signs."""
    features = tm.expand_features(hubs_graph(60), 7, 4)
    phi = features.to_dense(torch.tensor([1.0, -2.0, 0.5, 3.0, -1.0], dtype=torch.float64))[0]
    mask = phi @ phi.mT
    assert torch.equal(mask, mask.mT)
    assert torch.linalg.eigvalsh(mask).min() > -1e-9 * mask.abs().max()


def test_a_star_takes_bounded_work():
    """No row has more entries than the width allows, and rows of W that are read have none beyond it either."""
    from topomask.ops.expand_frontiers.hubs import cut_hubs
    from topomask.ops.expand_frontiers.numba import _matrix, _sizes
    from topomask.walks.expand import _edges

    num_leaves, width = 1 << 18, 8
    graph = star_graph(num_leaves)
    edges = _edges(graph, "sym")
    cut = cut_hubs(edges, width, True)
    assert len(cut.columns) == num_leaves + width
    for prune in PRUNES:
        features = tm.expand_features(graph, width, 4, prune=prune)
        assert len(features.loads) <= (num_leaves + 1) * (4 * width + 1)
        assert features.num_bytes < 600 * num_leaves
    # Scratch of a thread does not grow with the graph, whatever its hubs are.
    for prune in PRUNES:
        settings = settings_of(width, 4, prune)
        matrix, _ = _matrix(edges, settings)
        assert max(_sizes(matrix, settings)[:5]) <= 4 * width**2


@pytest.mark.parametrize("prune", PRUNES)
def test_small_cases(prune):
    one = tm.expand_features(tm.path_graph(1), 1, 3, prune=prune)
    assert one.to_dense(torch.ones(4)).tolist() == [[[1.0]]]
    none = tm.expand_features(tm.Graph.from_edges([], 3), 2, 3, prune=prune)
    assert torch.equal(none.to_dense(torch.ones(4))[0], torch.eye(3))
    assert torch.equal(tm.expand_features(tm.path_graph(4), 2, 0, prune=prune).to_dense(torch.ones(1))[0], torch.eye(4))
    loop = tm.expand_features(tm.Graph.from_edges([(0, 0), (0, 1)], weights=[1.0, 3.0]), 2, 2, prune=prune)
    torch.testing.assert_close(loop.to_dense(torch.tensor([0.0, 1.0, 0.0]))[0, 0, 0], torch.tensor(0.25))
    sink = tm.expand_features(tm.Graph.from_edges([(0, 1), (1, 2)], directed=True), 3, 4, prune=prune)
    assert sink.to_dense(torch.ones(5)).tolist() == [[[1.0, 1.0, 1.0], [0.0, 1.0, 1.0], [0.0, 0.0, 1.0]]]


def test_entries_that_cancel_are_not_counted():
    """Two ways with opposite signs to one node; a frontier of one entry is whole after that."""
    graph = tm.Graph.from_edges(
        [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (1, 5)], weights=[1, 1, 1, -1, 1, 1], directed=True, signed=True
    )
    features = tm.expand_features(graph, 2, 2, normalization="none", max_entries=10)
    assert dense_loads(features)[2, 0].tolist() == [0, 0, 0, 0, 0, 1]
    assert features.error_bound(torch.tensor([0.0, 0.0, 1.0]))[0] < 1e-6


def test_tolerance():
    graph = tm.grid_graph(9, 9)
    weights = 0.5 ** torch.arange(7)
    whole = tm.expand_features(graph, 30, 6, length_weights=weights, max_entries=10**6)
    before = float(whole.error_bound(weights).max())
    tolerance = 2 * before
    found = tm.expand_features(graph, 30, 6, length_weights=weights, max_entries=10**6, tolerance=tolerance)
    assert found.num_nonzeros < 0.8 * whole.num_nonzeros
    assert (found.error_bound(weights) <= tolerance + 1e-5).all()
    assert len(found.unreached) == 0
    # One column less would be one too many, as far as the cut by number tells.
    for row in (0, 40):
        count = int(found.rows([row]).row_ptr[-1])
        shorter = tm.expand_features(graph, 30, 6, length_weights=weights, max_entries=count - 1, start_nodes=[row])
        assert shorter.error_bound(weights)[0] > tolerance - 1e-5
    with pytest.warns(UserWarning, match=r"of 81 rows miss `tolerance` 0.001; they are listed in `features.unreached`"):
        missed = tm.expand_features(graph, 5, 6, length_weights=weights, tolerance=1e-3)
    assert torch.equal(missed.unreached, torch.arange(81))
    assert_same(features_without(missed), features_without(tm.expand_features(graph, 5, 6, length_weights=weights)))
    some = tm.Graph.batch([tm.path_graph(2), graph])
    with pytest.warns(UserWarning, match="81 of 83 rows"):
        found = tm.expand_features(some, 5, 6, tolerance=1e-3)
    assert torch.equal(found.unreached, torch.arange(2, 83))
    assert torch.equal(found.rows([82, 0, 1, 3]).unreached, torch.tensor([0, 3]))


def test_infinite_patience_leaves_the_start_node():
    features = tm.expand_features(tm.grid_graph(4, 4), 5, 3, tolerance=1e9)
    assert torch.equal(features.to_dense(torch.tensor([1.0, 0.0, 0.0, 0.0]))[0], torch.eye(16))
    assert features.num_nonzeros == 16


def test_length_weights_choose_columns():
    """With all weight on length 2, nodes at a distance of one are cut first."""
    graph = tm.cycle_graph(9)
    near = tm.expand_features(graph, 5, 2, max_entries=3, length_weights=[0, 1, 0])
    far = tm.expand_features(graph, 5, 2, max_entries=3, length_weights=np.array([0, 0, 1]))
    assert near.columns[: near.row_ptr[1]].tolist() == [0, 1, 8]
    assert far.columns[: far.row_ptr[1]].tolist() == [0, 2, 7]


BAD = [
    ({"width": 0}, "`width` must be an integer of at least 1"),
    ({"width": 2.0}, "`width`"),
    ({"max_length": -1}, "`max_length`"),
    ({"max_length": 1 << 20}, "`max_length`"),
    ({"prune": "smallest"}, "`prune` must be one of .*largest"),
    ({"prune": "larges"}, "Did you mean 'largest'"),
    ({"max_entries": 0}, "`max_entries` must be an integer of at least 1"),
    ({"prune": "resample", "max_entries": 5}, "`max_entries` is 5, but prune='resample' cuts no columns"),
    ({"prune": "resample", "tolerance": 0.1}, "`tolerance` is 0.1, but"),
    ({"prune": "resample", "length_weights": [1]}, "`length_weights` is .*, but"),
    ({"tolerance": -1}, "`tolerance` must be a finite number of at least 0"),
    ({"tolerance": float("nan")}, "`tolerance`"),
    ({"tolerance": float("inf")}, "`tolerance`"),
    ({"tolerance": "0"}, "`tolerance`"),
    ({"length_weights": [1.0]}, r"`length_weights` must be numbers of shape \[max_length \+ 1=11\]"),
    ({"length_weights": [-1.0] * 11}, r"length_weights\[0\] is -1.0"),
    ({"length_weights": [float("nan")] * 11}, "finite"),
    ({"length_weights": ["a"] * 11}, "`length_weights`"),
    ({"num_heads": 0}, "`num_heads`"),
    ({"num_heads": 2}, "`num_heads` is 2, but prune='largest' draws nothing"),
    ({"seed": -1}, "`seed`"),
    ({"ensemble": "value"}, "`ensemble`"),
    ({"normalization": "column"}, "`normalization`"),
    ({"start_nodes": [11]}, r"start_nodes\[0\] is 11"),
    ({"start_nodes": [True]}, "start_nodes"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[str(options) for options, _ in BAD])
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        tm.expand_features(ragged_graph(), **options)


def test_what_is_not_a_graph_is_named():
    with pytest.raises(ValueError, match=r"`graph` must be a topomask\.Graph"):
        tm.expand_features(torch.tensor([[0, 1], [1, 0]]))
    with pytest.raises(ValueError, match="directed"):
        tm.expand_features(directed_graph(), normalization="sym")


def test_limits(monkeypatch):
    graph = tm.grid_graph(100, 100)
    with pytest.raises(ValueError, match=r"asks for 300,000,000 entries per node, .* TOPOMASK_MAX_WALK_STEPS"):
        tm.expand_features(graph, 10**5, 30_000)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_numbers_that_overflow_are_refused(monkeypatch, backend):
    monkeypatch.setenv("TOPOMASK_BACKEND", backend)
    graph = tm.Graph.from_edges([(0, 1), (1, 2), (2, 0)], weights=[1e15, 2e15, 3e15])
    for width in (1, 3):
        for prune in PRUNES:
            for max_length in (6, 40):
                with pytest.raises(
                    ValueError, match=r"overflow in the rows of 3 nodes\. Choose a smaller `max_length`"
                ):
                    tm.expand_features(graph, width, max_length, prune=prune, normalization="none")
    assert tm.expand_features(graph, 2, 6).loads.isfinite().all()
    huge = tm.Graph.from_edges([(0, 1), (1, 2)], weights=[1e200, 1e200])
    with pytest.raises(ValueError, match=r"W under .sym. overflows or vanishes\. Scale"):
        tm.expand_features(huge)
    assert tm.expand_features(huge, normalization="row").loads.isfinite().all()


def test_default_devices_and_inference_mode_do_not_matter():
    with torch.inference_mode():
        features = tm.expand_features(tm.grid_graph(4, 4), 4, 3)
    f = torch.ones(4, requires_grad=True)
    features.values(f).sum().backward()
    assert not features.error_bound(f).isnan().any()
    with torch.device("meta"):
        again = tm.expand_features(tm.grid_graph(4, 4), 4, 3)
    assert_same(again, features)


def test_the_example_of_the_design():
    """Entries per row that reach the error of 20 repelling walks on a grid."""
    graph, f = tm.grid_graph(20, 20), 0.5 ** torch.arange(11, dtype=torch.float64)
    exact = torch.einsum("l,lij->ij", f, powers(graph, "sym", 10))
    walks = tm.sample_features(graph)
    expanded = tm.expand_features(graph, 14)
    errors = [float((features.to_dense(f)[0] - exact).norm() / exact.norm()) for features in (walks, expanded)]
    assert errors[1] <= errors[0]
    assert expanded.num_nonzeros < 0.35 * walks.num_nonzeros


def test_signed_graphs_have_signed_loads():
    features = tm.expand_features(signed_graph(), 2, 3, prune="resample")
    assert features.signed
    assert re.match(r"WalkFeatures\(num_heads=1, num_rows=7", repr(features))
