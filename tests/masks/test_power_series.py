import pytest
import torch
from torch.autograd import gradcheck

import topomask as tm
from helpers.graphs import directed_graph, ragged_graph, signed_graph
from helpers.mask_cases.walks import random_f
from topomask.masks import graph_blocks, power_series


@pytest.mark.parametrize("make", [ragged_graph, signed_graph, directed_graph])
@pytest.mark.parametrize("normalization", ["sym", "row", "none"])
def test_is_the_series(make, normalization):
    graph = make()
    if normalization == "sym" and graph.directed:
        with pytest.raises(ValueError, match="directed"):
            tm.PowerSeriesMask(graph, torch.ones(3), normalization="sym")
        return
    alpha = random_f(2, 4)
    w = torch.from_numpy(graph.adjacency(normalization).toarray())
    expected = sum(alpha[:, k, None, None] * torch.linalg.matrix_power(w, k) for k in range(5))
    mask = tm.PowerSeriesMask(graph, alpha, normalization=normalization)
    torch.testing.assert_close(mask.to_dense(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("make", [ragged_graph, directed_graph])
@pytest.mark.parametrize("normalization", [None, "row", "none"])
def test_edge_weights(make, normalization):
    """The graph's own weights give the graph's mask; others are differentiable."""
    graph = make()
    alpha, weights = random_f(1, 3), graph.to_edge_index()[1]
    plain = tm.PowerSeriesMask(graph, alpha, normalization=normalization)
    given = tm.PowerSeriesMask(graph, alpha, normalization=normalization, edge_weights=weights)
    torch.testing.assert_close(given.to_dense(), plain.to_dense())
    other = (weights * torch.linspace(0.5, 2, len(weights), dtype=torch.float64)).requires_grad_()

    def dense(w):
        return tm.PowerSeriesMask(graph, alpha, normalization=normalization, edge_weights=w).to_dense()

    assert gradcheck(dense, other)
    if not graph.directed and normalization is None:
        torch.testing.assert_close(dense(other), dense(other).mT)


def test_a_node_whose_weights_vanish_is_isolated():
    graph = tm.path_graph(3)
    weights = torch.tensor([0.0, 0.0, 0.0, 0.0], dtype=torch.float64, requires_grad=True)
    dense = tm.PowerSeriesMask(graph, torch.ones(3), edge_weights=weights).to_dense()
    torch.testing.assert_close(dense[0], torch.eye(3))
    dense.sum().backward()
    assert weights.grad.isfinite().all()


def test_given_tensors_keep_their_gradient_and_are_saved():
    source = torch.ones(3, requires_grad=True)
    tm.PowerSeriesMask(tm.path_graph(3), source * 2).to_dense().sum().backward()
    assert source.grad.abs().sum() > 0
    kept = tm.PowerSeriesMask(tm.path_graph(3), torch.ones(3), edge_weights=torch.tensor([1.0, 1.0, 2.0, 2.0]))
    assert set(kept.state_dict()) == {"coefficients", "edge_weights"}


def test_on_another_graph():
    mask = tm.PowerSeriesMask(ragged_graph(), random_f(2, 3))
    dense = mask.on(tm.cycle_graph(4)).to_dense()
    torch.testing.assert_close(dense, tm.PowerSeriesMask(tm.cycle_graph(4), random_f(2, 3)).to_dense())
    dense.sum().backward()
    assert (mask.coefficients.grad > 0).all()
    free = tm.PowerSeriesMask(None, random_f(2, 3))
    torch.testing.assert_close(free.on(tm.cycle_graph(4)).to_dense(), dense)
    with pytest.raises(ValueError, match="does not use walks"):
        mask.on(tm.cycle_graph(4), walks=tm.sample_features(tm.cycle_graph(4)))


def test_edge_weights_belong_to_one_graph():
    graph = tm.path_graph(2)
    weighted = tm.PowerSeriesMask(graph, torch.ones(2), edge_weights=torch.ones(2))
    assert torch.equal(weighted.on(graph).to_dense(), weighted.to_dense())
    for other in (tm.path_graph(3), tm.path_graph(2)):
        with pytest.raises(ValueError, match="The `edge_weights` of this mask belong to its own graph"):
            weighted.on(other)
    with pytest.raises(ValueError, match="Pass the graph too"):
        tm.PowerSeriesMask(None, torch.ones(2), edge_weights=torch.ones(2))
    weighted.graph = tm.path_graph(3)
    with pytest.raises(ValueError, match=r"shape \[4\]"):
        weighted.on()


def test_operators_follow_tensors_that_are_no_parameters():
    """What is cached while no parameter changes depends on given tensors too, and has their precision."""
    graph, coefficients, weights = tm.path_graph(3), torch.ones(3).double(), torch.ones(4).double()
    mask = tm.PowerSeriesMask(graph, coefficients.requires_grad_(), edge_weights=weights.requires_grad_())
    with torch.no_grad():
        for tensor in (coefficients, weights):
            before, dense = mask.on(), mask.to_dense()
            assert mask.on() is before
            assert dense.dtype == torch.float64
            tensor[0] *= 2.0
            assert not torch.equal(mask.to_dense(), dense)
            with pytest.raises(RuntimeError, match="snapshot"):
                before @ torch.ones(1, 3, 1)


@pytest.mark.parametrize("make", [ragged_graph, directed_graph])
def test_every_head_has_its_own_coefficients(make):
    graph = make()
    mask = tm.PowerSeriesMask(graph, num_heads=4, order=3).double()
    assert mask.num_heads == 4
    expected_start = (0.5 ** torch.arange(4.0, dtype=torch.float64)).expand(4, -1)
    assert torch.equal(mask.coefficients.detach(), expected_start)
    with torch.no_grad():
        mask.coefficients.copy_(random_f(4, 3))
    w = torch.from_numpy(graph.adjacency().toarray())
    x = torch.randn(4, graph.num_nodes, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    alpha = mask.coefficients.detach().clone().requires_grad_()
    dense = torch.stack([sum(a[k] * torch.linalg.matrix_power(w, k) for k in range(4)) for a in alpha])
    torch.testing.assert_close(mask.to_dense(), dense, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(mask @ x, dense @ x, rtol=1e-12, atol=1e-12)
    (expected,) = torch.autograd.grad((dense @ x).square().sum(), alpha)
    for found in ((mask @ x), mask.to_dense() @ x):
        (gradient,) = torch.autograd.grad(found.square().sum(), mask.coefficients)
        torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-10)


def test_heads_and_order_agree_with_the_coefficients():
    graph, alpha = tm.path_graph(3), torch.tensor([1.0, 0.5, 0.25])
    spread = tm.PowerSeriesMask(graph, alpha, num_heads=2, order=2)
    assert torch.equal(spread.coefficients.detach(), alpha.expand(2, -1))
    assert tm.PowerSeriesMask(graph, alpha).coefficients.shape == (3,)
    assert tm.PowerSeriesMask(graph).coefficients.shape == (11,)
    assert tm.PowerSeriesMask(num_heads=2).on(graph).num_heads == 2
    # A tensor that requires a gradient is used as it is, by all heads.
    shared = torch.nn.Parameter(alpha.clone())
    mask = tm.PowerSeriesMask(graph, shared, num_heads=2)
    assert mask.coefficients is shared
    assert torch.equal(mask.to_dense(), tm.PowerSeriesMask(graph, alpha).to_dense().expand(2, -1, -1))
    mask.to_dense().sum().backward()
    assert (shared.grad > 0).all()
    for options, message in (
        (dict(coefficients=torch.ones(2, 3), num_heads=4), r"shape \(2, 3\), which contradicts num_heads=4"),
        (dict(coefficients=torch.ones(1, 3), num_heads=2), r"shape \(1, 3\), which contradicts num_heads=2"),
        (dict(coefficients=alpha, order=3), r"shape \(3,\), which contradicts order=3"),
        (dict(num_heads=0), "`num_heads` must be an integer of at least 1"),
        (dict(order=-1), "`order` must be an integer of at least 0"),
    ):
        with pytest.raises(ValueError, match=message):
            tm.PowerSeriesMask(graph, **options)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"\[K \+ 1\]"):
        tm.PowerSeriesMask(tm.path_graph(2), torch.ones(2, 2, 2))
    with pytest.raises(ValueError, match=r"shape \[2\]"):
        tm.PowerSeriesMask(tm.path_graph(2), torch.ones(2), edge_weights=torch.ones(3))


def test_nothing_of_size_n_squared(monkeypatch):
    """A product on 2^17 nodes: N x N would take 137 GB."""
    mask = tm.PowerSeriesMask(tm.path_graph(2**17), tm.series.heat(4).float())
    assert (mask @ torch.ones(1, 2**17, 2)).shape == (1, 2**17, 2)


@pytest.mark.parametrize("make", [ragged_graph, signed_graph, directed_graph])
def test_kept_powers_give_what_products_give(monkeypatch, make):
    graph = make()
    mask = tm.PowerSeriesMask(graph, torch.tensor([[1.0, -0.5, 0.3], [0.2, 0.4, -0.1]], dtype=torch.float64))
    found = []
    for limit in (1 << 22, 0):
        monkeypatch.setattr(power_series, "_MAX_KEPT_POWERS", limit)
        values = (mask.to_dense(), mask.magnitude().to_dense())
        assert len(mask.on()._record.kept) == (2 if graph.signed else 1)
        found.append([*values, *(torch.autograd.grad(x.square().sum(), mask.coefficients)[0] for x in values)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
    operator = mask.on()
    assert operator.magnitude() is not operator


def test_powers_are_found_once_while_coefficients_are_learnt(monkeypatch):
    mask = tm.PowerSeriesMask(ragged_graph(), torch.tensor([[1.0, 0.5, 0.3]]))
    first = mask.to_dense()
    calls = []
    monkeypatch.setattr(power_series, "multiply", lambda *args: calls.append(args))
    with torch.no_grad():
        mask.coefficients.mul_(2.0)
    torch.testing.assert_close(mask.to_dense(), 2 * first)
    # Another mask of the same kind shares them.
    other = tm.PowerSeriesMask(mask.graph, torch.tensor([[1.0, 0.5, 0.3]]))
    assert torch.equal(other.to_dense(), first)
    assert not calls


def test_a_series_without_negative_numbers_is_its_own_magnitude():
    mask = tm.PowerSeriesMask(ragged_graph(), torch.tensor([1.0, 0.5]))
    operator = mask.on()
    assert operator.magnitude() is operator
    with torch.no_grad():
        mask.coefficients[1] = -0.5
    operator = mask.on()
    assert operator.magnitude() is not operator


@pytest.mark.parametrize("at_once", [1 << 25, 2 * 16 * 200])
@pytest.mark.parametrize("kept", [True, False])
def test_blocks_of_a_batch_are_found_by_few_columns(monkeypatch, kept, at_once):
    """Softmax attention on many small graphs forms no matrix of all pairs of nodes."""
    monkeypatch.setattr(power_series, "_MAX_KEPT_POWERS", 1 << 22 if kept else 0)
    monkeypatch.setattr(graph_blocks, "_AT_ONCE", at_once)
    graphs = [tm.cycle_graph(3 + k % 5) for k in range(40)]
    mask = tm.PowerSeriesMask(tm.Graph.batch(graphs), torch.tensor([[1.0, -0.5, 0.3], [0.2, 0.4, -0.1]]))
    monkeypatch.setattr(power_series.PowerSeriesOperator, "to_dense", None)
    q = torch.randn(2, mask.graph.num_nodes, 4, requires_grad=True)
    out = tm.masked_softmax_attention(q, q, q, mask)
    monkeypatch.undo()
    assert mask.on().cost().max_pairs == 2 * sum(graph.num_nodes**2 for graph in graphs)
    dense = tm.masked_softmax_attention(q, q, q, mask, strategy="dense")
    torch.testing.assert_close(out, dense, rtol=1e-4, atol=1e-5)
    compiled = torch.compile(lambda q: tm.masked_softmax_attention(q, q, q, mask), fullgraph=True, backend="aot_eager")
    found = [torch.autograd.grad(x.square().sum(), [q, mask.coefficients]) for x in (out, dense, compiled(q))]
    for others in found[1:]:
        for ours, theirs in zip(found[0], others, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert len(mask.on()._blocks.counts) == (1 if at_once == 1 << 25 else 4)
    # One graph, or very large ones, stay dense.
    assert mask.on(tm.cycle_graph(9)).cost().max_pairs is None
    assert mask.on(tm.Graph.batch([tm.path_graph(9000), *graphs])).cost().max_pairs is None


def test_edge_weights_in_half_precision_are_normalised_in_float32():
    graph = ragged_graph()
    weights = torch.rand(len(graph.indices)).to(torch.bfloat16)
    half, fine = (
        tm.PowerSeriesMask(graph, torch.tensor([1.0, 0.5, 0.25]), edge_weights=x) for x in (weights, weights.float())
    )
    assert torch.equal(half.to_dense(), fine.to_dense())
