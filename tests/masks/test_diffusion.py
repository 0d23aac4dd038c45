"""Heat kernels.

The z-tests below have a family-wise false-fail rate of 1e-6 (Bonferroni over all functionals, Student's law with 399
degrees of freedom), and their power is asserted.
"""

import copy
import math

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy import stats
from scipy.sparse.linalg import expm_multiply

import topomask as tm
from helpers.graphs import directed_graph, ragged_batch, ragged_graph, signed_graph, star_graph
from topomask.masks import graph_blocks
from topomask.masks.diffusion import DiffusionOperator

OPERATORS = ["laplacian", "normalized_laplacian", "negated_adjacency"]
EXACT = {"rtol": 1e-11, "atol": 1e-11}


def operator_matrix(graph: tm.Graph, operator: str) -> sp.csr_array:
    """T as SciPy has it."""
    adjacency = graph.to_scipy()
    if operator == "negated_adjacency":
        return -adjacency
    if operator == "laplacian":
        return sp.csr_array(sp.diags_array(graph.degrees) - adjacency)
    scale = np.where(graph.degrees > 0, graph.degrees, 1.0) ** -0.5
    weighted = sp.diags_array(scale) @ adjacency @ sp.diags_array(scale)
    return sp.csr_array(sp.diags_array((graph.degrees > 0).astype(float)) - weighted)


def exact(graph: tm.Graph, operator: str, time: float) -> torch.Tensor:
    """exp(-time T) by its eigenvectors."""
    values, vectors = np.linalg.eigh(operator_matrix(graph, operator).toarray())
    return torch.from_numpy(vectors @ np.diag(np.exp(-time * values)) @ vectors.T)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("make", [ragged_graph, signed_graph, ragged_batch, lambda: tm.Graph.from_edges([], 3)])
def test_is_the_matrix_exponential(make, operator):
    graph = make()
    times = [1e-9, 0.4, 3.0, 20.0]
    mask = tm.DiffusionMask(graph, operator, time=torch.tensor(times, dtype=torch.float64), num_heads=4)
    dense = mask.to_dense()
    for head, time in enumerate(times):
        expected = torch.linalg.matrix_exp(-time * torch.from_numpy(operator_matrix(graph, operator).toarray()))
        scale = float(expected.abs().max())
        torch.testing.assert_close(dense[head] / scale, expected / scale, **EXACT)
    assert torch.equal(dense[0] != 0, dense[0].mT != 0)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("graph", "times"),
    [
        (star_graph(1000), [1e-6, 0.02, 0.4]),
        (tm.grid_graph(30, 40), [1e-6, 1.0, 15.0]),
        (ragged_graph(), [50.0, 5.0, 0.1]),
    ],
)
def test_products_are_those_of_scipy(operator, dtype, graph, times):
    """With a hub of 1,000 leaves and a time of 50 too, to the rounding of the arithmetic."""
    if operator == "negated_adjacency":
        times = [time / 2 for time in times]
    mask = tm.DiffusionMask(graph, operator, time=torch.tensor(times, dtype=torch.float64), num_heads=3).to(dtype)
    x = torch.randn(3, graph.num_nodes, 4, dtype=dtype)
    found = (mask @ x).detach()
    assert found.dtype == dtype
    matrix = operator_matrix(graph, operator)
    for head, time in enumerate(mask.time().tolist()):
        expected = torch.from_numpy(expm_multiply(-time * matrix, x[head].double().numpy()))
        error = float((found[head] - expected).abs().max() / max(expected.abs().max(), x[head].abs().max()))
        # SciPy itself is off by about 1e-12 where T is large.
        assert error < (3e-5 if dtype == torch.float32 else 1e-10), (operator, time, error)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("tolerance", [1e-2, 1e-5, 1e-9])
def test_tolerance_bounds_the_error(operator, tolerance):
    graph = tm.grid_graph(12, 12)
    for time in (0.1, 1.0, 10.0):
        mask = tm.DiffusionMask(graph, operator, time=time, tolerance=tolerance).double()
        precise = tm.DiffusionMask(graph, operator, time=time).double()
        eye = torch.eye(144, dtype=torch.float64)[None]
        error = torch.linalg.matrix_norm(mask @ eye - precise @ eye, ord=2)
        growth = math.exp(time * mask.on()._matrix.growth)
        assert error <= tolerance * growth
        assert mask.on().num_terms[0] < tm.DiffusionMask(graph, operator, time=time, tolerance=1e-15).on().num_terms[0]


def test_large_times_of_a_star_reach_the_limit():
    """Heat on a star of 1,000 leaves spreads evenly; a matrix exponential in float32 would not tell."""
    mask = tm.DiffusionMask(star_graph(1000), "laplacian", time=50.0)
    assert mask.on().num_terms[0] < 1000
    out = mask @ torch.eye(1001)[:, :2][None]
    torch.testing.assert_close(out, torch.full_like(out, 1 / 1001), rtol=1e-3, atol=0)


def test_laplacians_are_those_of_networkx():
    nodes = nx.gnp_random_graph(20, 0.15, seed=1)
    graph = tm.Graph.from_networkx(nodes)
    assert (graph.degrees == 0).any()
    for operator, laplacian in (
        ("laplacian", nx.laplacian_matrix(nodes)),
        ("normalized_laplacian", nx.normalized_laplacian_matrix(nodes)),
    ):
        expected = torch.linalg.matrix_exp(-0.7 * torch.from_numpy(laplacian.toarray().astype(float)))
        mask = tm.DiffusionMask(graph, operator, time=torch.tensor(0.7, dtype=torch.float64))
        torch.testing.assert_close(mask.to_dense()[0], expected, **EXACT)
    isolated = int(np.flatnonzero(graph.degrees == 0)[0])
    assert float(mask.to_dense().detach()[0, isolated, isolated]) == pytest.approx(1.0)


def test_normalized_laplacian_is_the_heat_series():
    graph = tm.grid_graph(4, 5)
    mask = tm.DiffusionMask(graph, "normalized_laplacian", time=torch.tensor(0.8, dtype=torch.float64))
    series = tm.PowerSeriesMask(graph, tm.series.heat(25, 0.8, dtype=torch.float64))
    torch.testing.assert_close(mask.to_dense(), series.to_dense(), **EXACT)


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_batch_is_as_exact_as_its_graphs(operator):
    """A graph with a large spectrum must not cost another its digits, nor decide what counts as nothing."""
    small, large = tm.path_graph(5), tm.Graph.from_edges([(0, 1)], weights=[12.0])
    whole = tm.DiffusionMask(tm.Graph.batch([small, large]), operator, time=2.0)
    x = torch.rand(1, 7, 3)
    x[:, 5:] *= 1e6
    alone = whole.on(small) @ x[:, :5]
    torch.testing.assert_close((whole @ x)[:, :5], alone, rtol=1e-4, atol=0)
    noise = whole.on().product_noise(x)
    assert (noise[:, :5] < 1e-3 * alone).all()
    q, k, v = torch.rand(3, 1, 1, 7, 4)
    k[..., 5:, :] *= 1e5
    together = tm.masked_attention(q, k, v, whole, strategy="product")
    apart = tm.masked_attention(*(t[..., :5, :] for t in (q, k, v)), whole.on(small), strategy="product")
    torch.testing.assert_close(together[..., :5, :], apart, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("graph", [tm.path_graph(200), tm.grid_graph(15, 15), star_graph(300), ragged_batch()])
@pytest.mark.parametrize("tolerance", [None, 1e-4])
def test_noise_bounds_the_error_of_products(operator, graph, tolerance):
    for time in (0.01, 1.0, 4.0):
        mask = tm.DiffusionMask(graph, operator, time=time, tolerance=tolerance)
        x = torch.rand(2, 1, graph.num_nodes, 40) + 0.1
        precise = tm.DiffusionMask(graph, operator, time=time).double() @ x.double()
        noise = mask.on().product_noise(x)
        # Also for columns that are multiplied in other company, whose sums have another order.
        for found in (mask @ x, torch.cat([mask @ x[..., :3], mask @ x[..., 3:]], dim=-1)):
            assert ((found - precise).abs() <= noise).all()
        # It is of use: what queries attend to where all keys count is far above it.
        if tolerance is None:
            assert (noise < 1e-2 * precise).all()


@pytest.mark.parametrize("operator", OPERATORS)
def test_queries_that_attend_to_nothing_give_zero(operator):
    """Keys in one of two components; queries in the other see nothing, exactly, with zero gradient, in float32."""
    graph = tm.Graph.batch([tm.grid_graph(5, 5), tm.grid_graph(4, 4)])
    joined = tm.Graph.from_scipy(graph.to_scipy())
    for whole in (graph, joined):
        mask = tm.DiffusionMask(whole, operator, time=1.5)
        q, k, v = (t.requires_grad_() for t in torch.randn(3, 1, 1, 41, 8).unbind())
        padded = torch.arange(41)[None] >= 25
        found = {}
        for strategy in ("product", "dense"):
            out = tm.masked_attention(q, k, v, mask, strategy=strategy, feature_map="elu", key_padding_mask=padded)
            assert (out[..., 25:, :] == 0).all()
            assert (out[..., :25, :].abs().sum(-1) > 0).all()
            gradients = torch.autograd.grad(out[..., 25:, :].sum(), [q, k, v, mask.log_time], retain_graph=True)
            assert all((gradient == 0).all() for gradient in gradients)
            found[strategy] = [out, *torch.autograd.grad(out.square().sum(), [q, k, v, mask.log_time])]
        for a, b in zip(*found.values(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_what_drowns_in_noise_is_nothing():
    """On a path of 60 nodes heat from one end is below the rounding errors of float32 at the other."""
    mask = tm.DiffusionMask(tm.path_graph(60), "laplacian", time=3.0)
    q, k, v = torch.rand(3, 1, 1, 60, 4) + 0.1
    padded = torch.arange(60)[None] > 0
    out = tm.masked_attention(q, k, v, mask, strategy="product", key_padding_mask=padded)
    # One key: whoever sees it gets its value.
    near = out[0, 0, :8]
    torch.testing.assert_close(near, v[0, 0, :1].expand(8, -1), rtol=1e-2, atol=0)
    assert (out[0, 0, 30:] == 0).all()
    dense = tm.masked_attention(q, k, v, mask, strategy="dense", key_padding_mask=padded)
    assert ((dense[0, 0] - v[0, 0, 0]).abs().amax(-1) < 1e-3).sum() >= 20
    assert (dense[0, 0, -1] == 0).all()
    softmax = tm.masked_softmax_attention(q, k, v, mask, query_nodes=torch.arange(60), key_padding_mask=padded)
    assert softmax.isfinite().all()


def test_signed_graphs_have_a_magnitude_and_others_are_their_own():
    for operator in OPERATORS:
        mask = tm.DiffusionMask(signed_graph(), operator, time=0.8).double()
        assert (mask.to_dense() < 0).any()
        absolute = tm.Graph.from_scipy(abs(signed_graph().to_scipy()))
        torch.testing.assert_close(
            mask.magnitude().to_dense(), tm.DiffusionMask(absolute, operator, time=0.8).double().to_dense(), **EXACT
        )
        plain = tm.DiffusionMask(ragged_graph(), operator, time=0.8).on()
        assert plain.magnitude() is plain
        assert (plain.to_dense() >= 0).all()


def test_signed_self_loops_count_as_they_should():
    graph = tm.Graph.from_edges([(0, 1), (0, 0), (1, 1)], weights=[1.0, -2.0, 0.5], signed=True)
    for operator in OPERATORS:
        mask = tm.DiffusionMask(graph, operator, time=torch.tensor(0.6, dtype=torch.float64))
        torch.testing.assert_close(mask.to_dense()[0], exact(graph, operator, 0.6), **EXACT)
        assert (mask.magnitude().to_dense() >= mask.to_dense().abs()).all()


def test_on_another_graph_and_copies():
    mask = tm.DiffusionMask(ragged_graph(), "laplacian", time=torch.tensor([0.5, 2.0]).double(), num_heads=2)
    dense = mask.on(tm.grid_graph(3, 3)).to_dense()
    torch.testing.assert_close(dense[1], exact(tm.grid_graph(3, 3), "laplacian", 2.0), **EXACT)
    assert torch.autograd.grad(dense[0].trace(), mask.log_time)[0].tolist()[0] < 0
    free = tm.DiffusionMask(None, "laplacian", time=torch.tensor([0.5, 2.0]).double(), num_heads=2)
    assert torch.equal(free.on(tm.grid_graph(3, 3)).to_dense(), dense)
    with pytest.raises(ValueError, match="no default graph"):
        free.by_walks()
    other = copy.deepcopy(mask)
    with torch.no_grad():
        other.log_time.add_(1.0)
    assert not torch.equal(other.to_dense(), mask.to_dense())
    assert set(mask.state_dict()) == {"log_time"}
    with pytest.raises(ValueError, match="does not use walks"):
        mask.on(tm.path_graph(3), walks=tm.sample_features(tm.path_graph(3)))
    meta = copy.deepcopy(mask).to("meta")
    assert meta.log_time.is_meta
    assert meta.on().cost().product > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_finite_and_close(dtype):
    mask = tm.DiffusionMask(tm.grid_graph(6, 6), "laplacian", time=[1.0, 4.0], num_heads=2)
    x = 100 * torch.rand(2, 36, 3)
    half = mask.to(dtype) @ x.to(dtype)
    assert half.dtype == dtype
    torch.testing.assert_close(half.float(), (mask.float() @ x), rtol=0.03, atol=0.1)
    q, k, v = (100 * torch.randn(3, 1, 2, 36, 4)).to(dtype)
    for strategy in ("product", "dense"):
        assert tm.masked_attention(q, k, v, mask.to(dtype), strategy=strategy).isfinite().all()


def test_learning_finds_the_time():
    """Gradient steps on the logarithm recover the time that made the data, though the terms change on the way."""
    graph = tm.grid_graph(6, 6)
    x = torch.randn(1, 36, 8, dtype=torch.float64)
    target = tm.DiffusionMask(graph, "laplacian", time=3.0).double() @ x
    mask = tm.DiffusionMask(graph, "laplacian", time=0.2).double()
    first = mask.on().num_terms
    exactly = {"tolerance_grad": 1e-14, "tolerance_change": 1e-16}
    optimizer = torch.optim.LBFGS(mask.parameters(), max_iter=50, line_search_fn="strong_wolfe", **exactly)

    def loss():
        optimizer.zero_grad()
        value = (mask @ x - target.detach()).square().mean()
        value.backward()
        return value

    optimizer.step(loss)
    assert float(mask.time().detach()) == pytest.approx(3.0, rel=1e-4)
    assert mask.on().num_terms > first


def test_compiled_products_follow_the_time():
    """The number of terms is not part of a compiled graph: a time that has grown is obeyed, or refused."""
    mask = tm.DiffusionMask(ragged_graph(), "negated_adjacency", time=0.1).double()
    x = torch.randn(1, 11, 3, dtype=torch.float64)
    torch._dynamo.reset()
    run = torch.compile(mask, fullgraph=True, backend="aot_eager")
    for time in (0.1, 1.0, 20.0):
        with torch.no_grad():
            mask.log_time.fill_(math.log(time))
        out = run(x)
        expected = mask @ x
        torch.testing.assert_close(out, expected, rtol=1e-12, atol=0)
        gradients = (torch.autograd.grad(y.square().sum(), mask.log_time)[0] for y in (out, expected))
        torch.testing.assert_close(*gradients, rtol=1e-10, atol=0)
    with torch.no_grad():
        mask.log_time.fill_(math.log(50.0))
    with pytest.raises(ValueError, match=r"exp\(141"):
        run(x)


def test_what_grows_too_large_is_refused():
    mask = tm.DiffusionMask(star_graph(1000), "negated_adjacency", time=2.5)
    assert (mask @ torch.rand(1, 1001, 2)).isfinite().all()
    big = tm.DiffusionMask(star_graph(1000), "negated_adjacency", time=3.0)
    for run in (lambda: big @ torch.rand(1, 1001, 2), big.to_dense):
        with pytest.raises(ValueError, match=r"exp\(94\.87\).*eigenvalues of T reach down to -31\.62"):
            run()


def test_nothing_of_size_n_squared():
    """A product on 2^17 nodes: N x N would take 137 GB."""
    mask = tm.DiffusionMask(tm.path_graph(2**17), "laplacian", time=0.5)
    x = torch.ones(1, 2**17, 2, requires_grad=True)
    out = mask @ x
    torch.testing.assert_close(out.detach(), torch.ones(1, 2**17, 2))
    out.sum().backward()
    assert x.grad.isfinite().all()


def test_bad_arguments_are_named():
    graph = ragged_graph()
    for change, message in (
        ({"operator": "adjacency"}, "`operator` must be one of"),
        ({"time": 0.0}, "`time` must be positive"),
        ({"time": [1.0, math.nan], "num_heads": 2}, "`time` must be positive"),
        ({"time": [1.0, 2.0]}, r"\[num_heads=1\]"),
        ({"num_heads": 0}, "`num_heads`"),
        ({"tolerance": 0.0}, "`tolerance`"),
    ):
        with pytest.raises(ValueError, match=message):
            tm.DiffusionMask(graph, **change)
    with pytest.raises(ValueError, match=r"`graph` must be undirected, but is directed.*with directed=False"):
        tm.DiffusionMask(directed_graph())
    with pytest.raises(ValueError, match="directed"):
        tm.DiffusionMask(graph).on(directed_graph())


NUM_SAMPLES = 400


def functionals(dense: torch.Tensor) -> torch.Tensor:
    """Fixed linear functionals of a mask [N, N]."""
    generator = torch.Generator().manual_seed(5)
    u, v = torch.rand(2, 3, len(dense), generator=generator, dtype=torch.float64) + 0.5
    return torch.cat(
        [torch.einsum("ai,ij,aj->a", u, dense, v), dense.trace()[None], dense[4, 4][None], dense[0, 1][None]]
    )


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("operator", OPERATORS)
def test_walks_estimate_the_kernel_without_bias(operator, symmetric):
    """On a graph with unequal degrees, an isolated node and a self-loop; truncation is below 1e-9."""
    graph, time = ragged_graph(), 0.6
    truth = functionals(exact(graph, operator, time))
    # Heads walk independently of each other.
    mask = tm.DiffusionMask(graph, operator, time=time, num_heads=NUM_SAMPLES)
    walks = mask.by_walks(4, 24, symmetric=symmetric, seed=0, coupling="iid")
    found = torch.stack([functionals(dense) for dense in walks.to_dense().double().detach()])
    error, spread = found.mean(0) - truth, found.std(0) / NUM_SAMPLES**0.5
    fixed = spread < 1e-6
    assert (error[fixed].abs() < 1e-4).all()
    scores = (error / spread)[~fixed].abs()
    threshold = float(stats.t.isf(1e-6 / (2 * len(truth)), NUM_SAMPLES - 1))
    assert scores.max() < threshold, scores
    # Power: a time that is off by a tenth is found out.
    wrong = functionals(exact(graph, operator, 1.1 * time))
    assert ((found.mean(0) - wrong) / spread)[~fixed].abs().max() > 1.5 * threshold


@pytest.mark.parametrize("operator", OPERATORS)
def test_walks_come_close_to_the_kernel(operator):
    """Relative Frobenius error on a grid: small, and smaller with more walkers."""
    graph = tm.grid_graph(8, 8)
    mask = tm.DiffusionMask(graph, operator, time=[0.5, 1.0], num_heads=2)
    precise = mask.to_dense().detach()

    def error(num_walks: int) -> torch.Tensor:
        found = mask.by_walks(num_walks, seed=1).to_dense().detach()
        return (found - precise).norm(dim=(1, 2)) / precise.norm(dim=(1, 2))

    few, many = error(16), error(400)
    assert (many < 0.04).all(), many
    assert (many < 0.5 * few).all(), (few, many)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("operator", OPERATORS)
def test_default_length_of_walks_leaves_little_out(operator, symmetric):
    """The series that walks estimate, in exact arithmetic, is within 1e-3 of the kernel."""
    graph = tm.grid_graph(5, 5)
    mask = tm.DiffusionMask(graph, operator, time=2.0).double()
    walks = mask.by_walks(1, seed=0, symmetric=symmetric)
    f = walks.f.detach()[0]
    alpha = tm.convolve(f) if symmetric else f
    series = tm.PowerSeriesMask(walks.graph, alpha, normalization=walks.recipe.normalization).to_dense()[0].detach()
    precise = mask.to_dense()[0].detach()
    error = torch.linalg.matrix_norm(series - precise, ord=2) / torch.linalg.matrix_norm(precise, ord=2)
    assert error < 1e-3
    assert error > 1e-7, "longer than needed"


def test_walks_on_batches_and_signed_graphs():
    batch = ragged_batch()
    for operator in OPERATORS:
        walks = tm.DiffusionMask(batch, operator, time=0.5).by_walks(3000, seed=0)
        assert walks.graph.num_graphs == batch.num_graphs
        assert np.array_equal(walks.graph.ids, batch.ids)
        torch.testing.assert_close(
            walks.to_dense()[0].double(), exact(batch, operator, 0.5), rtol=0, atol=0.02, check_dtype=False
        )
        signed = tm.DiffusionMask(signed_graph(), operator, time=0.5).by_walks(3000, seed=0)
        torch.testing.assert_close(
            signed.to_dense()[0].double(), exact(signed_graph(), operator, 0.5), rtol=0, atol=0.03
        )
    loop = tm.Graph.from_edges([(0, 1), (1, 1)], weights=[1.0, -1.0], signed=True)
    with pytest.raises(ValueError, match="Node 1 has a self-loop with negative weight -1"):
        tm.DiffusionMask(loop).by_walks()
    empty = tm.DiffusionMask(tm.Graph.from_edges([], 3)).by_walks(seed=0)
    torch.testing.assert_close(empty.to_dense()[0], torch.eye(3))


@pytest.mark.parametrize("at_once", [1 << 25, 2 * 16 * 200])
def test_blocks_of_a_batch_are_found_by_few_columns(monkeypatch, at_once):
    """Softmax attention on many small graphs forms no matrix of all pairs of nodes."""
    monkeypatch.setattr(graph_blocks, "_AT_ONCE", at_once)
    graphs = [tm.cycle_graph(3 + k % 5) for k in range(40)]
    mask = tm.DiffusionMask(tm.Graph.batch(graphs), num_heads=2)
    monkeypatch.setattr(DiffusionOperator, "to_dense", None)
    q = torch.randn(2, mask.graph.num_nodes, 4, requires_grad=True)
    out = tm.masked_softmax_attention(q, q, q, mask)
    monkeypatch.undo()
    assert mask.on().cost().max_pairs == 2 * sum(graph.num_nodes**2 for graph in graphs)
    torch.testing.assert_close(out, tm.masked_softmax_attention(q, q, q, mask, strategy="dense"), rtol=1e-4, atol=1e-5)
    compiled = torch.compile(lambda q: tm.masked_softmax_attention(q, q, q, mask), fullgraph=True, backend="aot_eager")
    found = [torch.autograd.grad(x.square().sum(), [q, mask.log_time]) for x in (compiled(q), out)]
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert len(mask.on()._blocks.counts) == (1 if at_once == 1 << 25 else 4)
    # One graph, or very large ones, stay dense.
    assert mask.on(tm.cycle_graph(9)).cost().max_pairs is None
    large = tm.Graph.batch([tm.path_graph(9000), *graphs])
    assert mask.on(large).cost().max_pairs is None
    with pytest.raises(ValueError, match="no sparse entries"):
        mask.on(large).entries()
