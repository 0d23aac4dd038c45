"""What is particular to masks on forests; the laws cover the rest."""

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch

import topomask as tm
from helpers.graphs import small_forest, star_graph


def random_tree(num_nodes: int, seed: int = 0) -> tm.Graph:
    child = np.arange(1, num_nodes)
    parent = np.floor(np.random.default_rng(seed).random(num_nodes - 1) * child).astype(np.int64)
    return tm.Graph.from_edges(np.stack([parent, child]), num_nodes)


def test_entries_are_functions_of_networkx_distances():
    weights = np.random.default_rng(0).uniform(0.1, 3.0, 9)
    graph = small_forest(weights)
    other = nx.from_scipy_sparse_array(graph.to_scipy())
    found = dict(nx.all_pairs_dijkstra_path_length(other))
    distances = torch.tensor([[found[i].get(j, torch.inf) for j in range(12)] for i in range(12)])
    mask = tm.ForestMask(graph, num_heads=2, rate=torch.tensor([[0.3], [1.1]]), weighted=True)
    expected = torch.exp(-torch.tensor([0.3, 1.1])[:, None, None] * distances)
    torch.testing.assert_close(mask.to_dense(), expected)
    torch.testing.assert_close(mask @ torch.eye(12).expand(2, 12, 12), expected)


def test_one_term_has_an_offset_and_several_have_signs():
    mask = tm.ForestMask(tm.path_graph(2), rate=1.0)
    with torch.no_grad():
        mask.offset.fill_(0.5)
    torch.testing.assert_close(mask.to_dense()[0, 0], torch.tensor([0.5, -0.5]).exp())
    operator = mask.on()
    assert operator.magnitude() is operator
    mask = tm.ForestMask(tm.path_graph(3), num_terms=2, rate=torch.tensor([0.5, 1.0]))
    with torch.no_grad():
        mask.coefficients.copy_(torch.tensor([[1.0, -2.0]]))
    d = torch.arange(3.0)
    torch.testing.assert_close(mask.to_dense()[0, 0], (-0.5 * d).exp() - 2.0 * (-d).exp())
    torch.testing.assert_close(mask.magnitude().to_dense()[0, 0], (-0.5 * d).exp() + 2.0 * (-d).exp())


def test_cycles_are_named():
    with pytest.raises(ValueError, match=r"cycle of 4 edges.*from_graph"):
        tm.ForestMask(tm.cycle_graph(4))
    with pytest.raises(ValueError, match="node 1 has a self-loop"):
        tm.ForestMask(tm.Graph.from_edges([(0, 1), (1, 1)], 2))
    long = tm.cycle_graph(5000)
    with pytest.raises(ValueError, match=r"\.\.\..*cycle of 5000 edges") as error:
        tm.ForestMask(long)
    assert len(str(error.value)) < 400


def test_spanning_forest_of_a_graph():
    rng = np.random.default_rng(3)
    dense = np.triu(rng.uniform(0.5, 2.0, (22, 22)) * (rng.random((22, 22)) < 0.2), 1)
    dense[20:] = dense[:, 20:] = 0.0
    graph = tm.Graph.from_scipy(sp.csr_array(dense + dense.T + np.eye(22)))
    mask = tm.ForestMask.from_graph(graph, weighted=True)
    expected = nx.minimum_spanning_tree(nx.from_numpy_array(dense + dense.T))
    assert mask.graph.num_edges == expected.number_of_edges()
    assert mask.graph.weights.sum() / 2 == pytest.approx(expected.size(weight="weight"))
    batch = tm.Graph.batch([tm.cycle_graph(4), tm.path_graph(1), tm.grid_graph(2, 3)])
    mask = tm.ForestMask.from_graph(batch)
    assert mask.on().num_graphs == 3
    assert mask.graph.num_edges == 3 + 0 + 5
    assert not mask.to_dense()[0, :4, 4:].any()


def test_what_cannot_be_done_is_refused():
    path = tm.path_graph(100)
    with pytest.raises(ValueError, match=r"growth rate, 1, times the diameter, 99, .* is 99.*smaller"):
        tm.ForestMask(path, rate=-1.0, growing=True)
    mask = tm.ForestMask(path, rate=-0.5, growing=True)
    with torch.no_grad():
        mask.rates.fill_(-2.0)
    with pytest.raises(ValueError, match="overflows"):
        mask @ torch.ones(1, 100, 1)
    mask = tm.ForestMask(path)
    with torch.no_grad():
        mask.offset.fill_(100.0)
    with pytest.raises(ValueError, match=r"offset, 100, is 100.*overflows"):
        mask @ torch.ones(1, 100, 1)
    with pytest.raises(ValueError, match="positive"):
        tm.ForestMask(path, rate=-0.1)
    with pytest.raises(ValueError, match="directed"):
        tm.ForestMask(tm.Graph.from_edges([(0, 1)], 2, directed=True))
    with pytest.raises(ValueError, match=r"integer lengths.*1\.5"):
        tm.ForestMask(tm.Graph.from_edges([(0, 1)], 2, weights=[1.5]), table=torch.ones(3), weighted=True)
    with pytest.raises(ValueError, match=r"diameter 1000 is more than 64 times the 2 nodes"):
        tm.ForestMask(tm.Graph.from_edges([(0, 1)], 2, weights=[1000.0]), table=torch.ones(3), weighted=True)
    with pytest.raises(ValueError, match="`table` replaces the exponentials"):
        tm.ForestMask(path, table=torch.ones(3), num_terms=2)


def test_growth_keeps_its_digits():
    """exp(0.7 d) on a path: sums without a child are not found by subtraction."""
    path = tm.path_graph(100)
    mask = tm.ForestMask(path, rate=-0.7, growing=True)
    d = torch.arange(100, dtype=torch.float64)
    expected = (0.7 * (d[:, None] - d).abs()).exp().sum(dim=1)
    torch.testing.assert_close((mask @ torch.ones(1, 100, 1))[0, :, 0].double(), expected, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("kind", ["exponential", "table"])
def test_deep_and_wide_forests(kind):
    """No recursion, no quadratic corner: 10^5 nodes in a row (10^6 for exponentials), or around one."""
    size = 1_000_000 if kind == "exponential" else 100_000
    options = {"rate": 0.6931471806} if kind == "exponential" else {"table": 0.5 ** torch.arange(40)}
    out = tm.ForestMask(tm.path_graph(size), **options) @ torch.ones(1, size, 1)
    assert out[0, size // 2, 0].item() == pytest.approx(3.0, rel=1e-4)
    out = tm.ForestMask(star_graph(size - 1), **options) @ torch.ones(1, size, 1)
    assert out[0, 0, 0].item() == pytest.approx(1.0 + 0.5 * (size - 1), rel=1e-4)
    assert out[0, 5, 0].item() == pytest.approx(1.5 + 0.25 * (size - 2), rel=1e-4)


def test_slow_decay_on_a_long_path_is_accurate_in_float32():
    size = 100_000
    mask = tm.ForestMask(tm.path_graph(size), rate=1e-5)
    x = torch.rand(1, size, 1)
    exact = tm.ForestMask(tm.path_graph(size), rate=1e-5).double() @ x.double()
    # The rate itself is rounded to float32.
    torch.testing.assert_close((mask @ x).double(), exact, rtol=1e-5, atol=0.0)


def test_queries_without_keys_get_nothing():
    """Also where transforms leave rounding noise: a long path beside a short one whose keys are all padding."""
    batch = tm.Graph.batch([tm.path_graph(3000), tm.path_graph(5)])
    mask = tm.ForestMask(batch, table=0.999 ** torch.arange(3000))
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 1, 3005, 4).unbind())
    padding = torch.zeros(1, 3005, dtype=torch.bool)
    padding[:, 3000:] = True
    assert mask.on().product_noise(k) is not None
    out = tm.masked_attention(q, k, v, mask, feature_map="elu", key_padding_mask=padding, strategy="product")
    assert not out[0, 0, 3000:].any()
    (grad,) = torch.autograd.grad(out.sum(), [q])
    assert not grad[0, 0, 3000:].any()
    assert grad.isfinite().all()


def test_noise_of_transforms_is_bounded():
    mask = tm.ForestMask(tm.path_graph(4000), table=torch.randn(4000))
    x = torch.randn(1, 4000, 3) * torch.tensor([1.0, 1e4, 1e-3])
    x[:, 17] = 1e5
    with torch.no_grad():
        error = (mask @ x).double() - mask.double() @ x.double()
    noise = mask.float().on().product_noise(x)
    assert (error.abs() <= noise).all()
    # It is a bound and no more: within a factor of a thousand.
    assert float(error.abs().max() / noise.max()) > 1e-3


def test_moves_to_another_forest():
    mask = tm.ForestMask(tm.path_graph(4), table=torch.tensor([1.0, 0.5, 0.25]))
    other = mask.on(random_tree(30))
    torch.testing.assert_close(other.to_dense(), tm.ForestMask(random_tree(30), table=mask.table.detach()).to_dense())
    (grad,) = torch.autograd.grad(other.to_dense().sum(), [mask.table])
    assert (grad > 0).all(), "the parameters are the same"
    bare = tm.ForestMask(table=mask.table.detach())
    assert torch.equal(bare.on(random_tree(30)).to_dense(), other.to_dense())
    with pytest.raises(ValueError, match="no default graph"):
        bare.to_dense()
    with pytest.raises(ValueError, match="cycle"):
        mask.on(tm.cycle_graph(3))


@pytest.mark.parametrize("options", [{"num_terms": 2}, {"table": 0.5 ** torch.arange(5)}])
def test_built_on_no_device_and_loaded_later(options):
    with torch.device("meta"):
        mask = tm.ForestMask(
            tm.path_graph(6), num_heads=2, **{k: v.to("meta") if k == "table" else v for k, v in options.items()}
        )
    assert all(parameter.is_meta for parameter in mask.parameters())
    real = tm.ForestMask(tm.path_graph(6), num_heads=2, **options)
    mask.to_empty(device="cpu").load_state_dict(real.state_dict())
    assert torch.equal(mask.to_dense(), real.to_dense())
    assert torch.equal(mask @ torch.ones(2, 6, 3), real @ torch.ones(2, 6, 3))


@pytest.mark.parametrize("options", [{}, {"num_terms": 2}, {"table": 0.5 ** torch.arange(5)}])
def test_half_precision_goes_through_float32(options):
    mask = tm.ForestMask(tm.path_graph(70), **options)
    x = torch.full((1, 70, 2), 1000.0)
    expected = mask @ x
    half = mask.half()
    assert half.to_dense().dtype == torch.float32
    out = half @ x.half()
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), expected, rtol=5e-3, atol=0.0)


def test_compiles():
    q, k, v = torch.randn(3, 1, 2, 20, 4)
    for mask in (
        tm.ForestMask(random_tree(20), num_heads=2),
        tm.ForestMask(random_tree(20), num_heads=2, table=torch.rand(2, 9)),
    ):
        eager = lambda q, m=mask: tm.masked_attention(q, k, v, m, strategy="product")  # noqa: E731
        run = torch.compile(eager, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(run(q), eager(q))
