import copy

import networkx as nx
import pytest
import torch

import topomask as tm
from helpers.graphs import directed_graph, ragged_batch, ragged_graph, signed_graph
from helpers.mask_cases.neighbourhoods import shortest_path_mask
from helpers.mask_cases.walks import random_f
from topomask.masks import shortest_path
from topomask.ops.pair_attention import estimate_tiles


def distances(graph: tm.Graph, weight: str | None = None) -> torch.Tensor:
    """Distances by NetworkX, [N, N]; infinite without a path, and between the graphs of a batch."""
    kind = nx.DiGraph if graph.directed else nx.Graph
    built = nx.from_scipy_sparse_array(graph.to_scipy(), create_using=kind)
    out = torch.full((graph.num_nodes, graph.num_nodes), torch.inf, dtype=torch.float64)
    for source, lengths in nx.all_pairs_dijkstra_path_length(built, weight=weight or (lambda *_: 1)):
        for target, length in lengths.items():
            out[source, target] = length
    return out


def random_directed() -> tm.Graph:
    return tm.Graph.from_networkx(nx.gnp_random_graph(40, 0.04, seed=1, directed=True))


def random_undirected() -> tm.Graph:
    return tm.Graph.from_networkx(nx.gnp_random_graph(60, 0.04, seed=2))


GRAPHS = [ragged_graph, directed_graph, signed_graph, ragged_batch, random_directed, random_undirected]


@pytest.mark.parametrize("make", GRAPHS)
@pytest.mark.parametrize("max_distance", [0, 1, 3, 50])
def test_entries_are_the_weights_of_distances(make, max_distance):
    graph = make()
    weights = random_f(2, max_distance)
    dist = distances(tm.Graph.from_scipy(abs(graph.to_scipy()), directed=graph.directed))
    expected = weights[:, dist.clamp(max=max_distance).long()] * dist.isfinite()
    mask = tm.ShortestPathMask(graph, num_heads=2, max_distance=max_distance, initial=weights)
    torch.testing.assert_close(mask.to_dense(), expected)


@pytest.mark.parametrize("make", [ragged_graph, directed_graph, ragged_batch])
def test_buckets_of_weighted_distances(make):
    graph = make()
    dist = distances(graph, "weight")
    ends = [0.0, 0.8, 1.7, float(dist[dist.isfinite()].max()) * 0.9]
    # An end belongs to the bucket below it.
    edge = float(graph.weights[0])
    ends = sorted({*ends, edge})
    weights = random_f(1, len(ends))
    bucket = sum((dist > end).long() for end in ends)
    mask = tm.ShortestPathMask(graph, boundaries=ends, initial=weights)
    torch.testing.assert_close(mask.to_dense(), weights[:, bucket] * dist.isfinite())
    assert bucket[dist.isfinite()].unique().numel() == len(ends) + 1


def graphormer(q, k, v, biases, dist) -> torch.Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5 + biases[:, dist.clamp(max=biases.shape[1] - 1).long()]
    return torch.softmax(scores.masked_fill(dist.isinf(), -torch.inf), dim=-1) @ v


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", [ragged_graph, directed_graph, ragged_batch])
def test_biases_are_added_to_the_scores_of_softmax_attention(make, dtype):
    """Graphormer: values and gradients in q, k, v and the biases."""
    torch.manual_seed(0)
    graph = make()
    biases = (3 * random_f(2, 4)).to(dtype)
    mask = tm.ShortestPathMask(graph, num_heads=2, max_distance=4, initial=biases, bias=True)
    operator = mask.on()
    assert operator.magnitude() is operator
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 2, 2, graph.num_nodes, 5, dtype=dtype).unbind())
    weight = torch.randn(2, 2, graph.num_nodes, 5, dtype=dtype)
    plain = biases.clone().requires_grad_()
    expected = graphormer(q, k, v, plain, distances(graph))
    wanted = torch.autograd.grad((expected * weight).sum(), [q, k, v, plain])
    for strategy in ["dense"] + ["pairs"] * (graph.num_graphs > 1):
        out = tm.masked_softmax_attention(q, k, v, mask, strategy=strategy)
        torch.testing.assert_close(out, expected)
        for found, gradient in zip(
            torch.autograd.grad((out * weight).sum(), [q, k, v, mask.weight]), wanted, strict=True
        ):
            torch.testing.assert_close(found, gradient, rtol=1e-4, atol=1e-5)


def test_biases_start_as_if_there_were_no_mask():
    q, k, v = torch.randn(3, 1, 9, 4)
    mask = tm.ShortestPathMask(tm.grid_graph(3, 3), bias=True)
    out = tm.masked_softmax_attention(q, k, v, mask)
    torch.testing.assert_close(out, torch.nn.functional.scaled_dot_product_attention(q, k, v))


def test_pairs_without_a_path():
    """Weight 0 that no step changes, unless they are given a weight to learn; 0 between graphs in any case."""
    graph = ragged_batch()
    apart = distances(graph).isinf()
    mask = shortest_path_mask(graph, 1, 3)
    assert mask.weight.shape == (1, 4)
    assert (mask.to_dense()[0][apart] == 0).all()
    learnt = shortest_path_mask(graph, 1, 3, unreachable=0.25)
    assert learnt.weight.shape == (1, 5)
    dense, groups = learnt.to_dense()[0], learnt.on().key_groups
    same = groups[:, None] == groups
    assert (dense[apart & same] == 0.25).all()
    assert (apart & same).any()
    assert (dense[~same] == 0).all()
    dense[apart & same].sum().backward()
    assert learnt.weight.grad[0, -1] == (apart & same).sum()
    closed = shortest_path_mask(graph, 1, 3, bias=True)
    assert (closed.to_dense()[0][apart] == 0).all()
    open_bias = shortest_path_mask(graph, 1, 3, bias=True, unreachable=0.0)
    assert (open_bias.to_dense()[0][apart & same] == 1).all()


def test_distances_are_small_integers_found_once_per_graph(monkeypatch):
    calls = []
    original = shortest_path.dijkstra
    monkeypatch.setattr(shortest_path, "dijkstra", lambda *a, **k: calls.append(1) or original(*a, **k))
    graph = tm.grid_graph(5, 5)
    masks = [tm.ShortestPathMask(graph, max_distance=m) for m in (2, 8, 300)]
    masks[0].on(graph)
    assert len(calls) == 1
    assert [m._record(graph).buckets.dtype for m in masks] == [torch.uint8, torch.uint8, torch.int16]
    masks[1].half().double().on()
    copy.deepcopy(masks[1]).on()
    assert len(calls) == 1
    tm.ShortestPathMask(tm.Graph.batch([tm.path_graph(20)] * 100))
    assert len(calls) < 20, "small graphs go to SciPy together"


@pytest.mark.parametrize("nodes_per_call", [1, 7, 256])
@pytest.mark.parametrize("distances_per_call", [1, 30, 1 << 22])
def test_how_distances_are_found_makes_no_difference(monkeypatch, nodes_per_call, distances_per_call):
    monkeypatch.setattr(shortest_path, "_NODES_PER_CALL", nodes_per_call)
    monkeypatch.setattr(shortest_path, "_DISTANCES_PER_CALL", distances_per_call)
    graph = ragged_batch()
    dense = tm.ShortestPathMask(graph).double().to_dense()[0]
    torch.testing.assert_close(dense, 0.5 ** distances(graph))


def test_a_batch_may_hold_graphs_without_nodes(monkeypatch):
    """They begin where the next one does, or after the last node."""
    from torch_geometric.data import Batch, Data

    monkeypatch.setattr(shortest_path, "_NODES_PER_CALL", 2)
    edge, none = torch.tensor([[0, 1], [1, 0]]), torch.zeros(2, 0, dtype=torch.int64)
    data = [Data(edge_index=e, num_nodes=n) for e, n in ((none, 0), (edge, 2), (none, 0), (edge, 2), (none, 0))]
    mask = tm.ShortestPathMask(tm.Graph.from_pyg(Batch.from_data_list(data)))
    block = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
    torch.testing.assert_close(mask.to_dense()[0], torch.block_diag(block, block))
    torch.testing.assert_close(mask @ torch.eye(4)[None], mask.to_dense())


def test_large_graphs_are_refused_before_anything_is_computed(monkeypatch):
    monkeypatch.setattr(shortest_path, "dijkstra", None)
    with pytest.raises(ValueError, match=r"67,108,864 pairs.*but has 67,125,249.*WalkMask, or ForestMask"):
        tm.ShortestPathMask(tm.path_graph(8193))
    monkeypatch.undo()
    monkeypatch.setattr(shortest_path, "MAX_NODE_PAIRS", 25)
    mask = tm.ShortestPathMask(tm.path_graph(5))
    with pytest.raises(ValueError, match="but has 36"):
        mask.on(tm.path_graph(6))


def test_a_batch_takes_the_squares_of_its_graphs():
    """1,000 molecules of 20 nodes: 400,000 pairs, where N x N would be 400 million."""
    batch = tm.Graph.batch([tm.cycle_graph(20)] * 1000)
    mask = tm.ShortestPathMask(batch, num_heads=2, bias=True)
    cost = mask.on().cost()
    assert cost.max_pairs == cost.product == 2 * 1000 * 400
    assert tm.plan_attention(mask, 16, 16, kernel="softmax").strategy == "pairs"
    q, k, v = torch.randn(3, 1, 2, 20_000, 4)
    out = tm.masked_softmax_attention(q, k, v, mask)
    one = tm.masked_softmax_attention(*(x[:, :, 40:60] for x in (q, k, v)), mask.on(tm.cycle_graph(20)))
    torch.testing.assert_close(out[:, :, 40:60], one)


def test_the_work_in_tiles_is_counted():
    graphs = [tm.path_graph(n) for n in (30, 45, 70, 31)]
    mask = tm.ShortestPathMask(tm.Graph.batch(graphs), num_heads=2)
    # Heads share the pattern.
    found = estimate_tiles(mask.on().entries().pattern, None)
    assert mask.on().cost().tiles.keys == pytest.approx(2 * (found.keys + found.alone / 16), rel=0.25)
    assert tm.ShortestPathMask(tm.Graph.batch([tm.path_graph(5)] * 3)).on().cost().tiles is None
    assert tm.ShortestPathMask(tm.path_graph(50)).on().cost().max_pairs is None
    q, k, v = torch.randn(3, 1, 2, 176, 8)
    out, expected = (tm.masked_attention(q, k, v, mask, strategy=s) for s in ("pairs", "dense"))
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


def test_on_another_graph_shares_weights():
    mask = shortest_path_mask(ragged_graph(), 2, 3)
    for other in (tm.cycle_graph(7), ragged_batch()):
        mask.weight.grad = None
        dense = mask.on(other).to_dense()
        torch.testing.assert_close(dense, shortest_path_mask(other, 2, 3).to_dense())
        dense.sum().backward()
        assert (mask.weight.grad > 0).all()
        torch.testing.assert_close(shortest_path_mask(None, 2, 3).on(other).to_dense(), dense)
    assert mask.on(ragged_batch()).cost().max_pairs is not None
    assert mask.on(ragged_graph()).cost().max_pairs is None


def test_half_precision_stays_finite():
    mask = tm.ShortestPathMask(tm.cycle_graph(100), bias=True).half()
    x = torch.full((1, 100, 1), 600.0, dtype=torch.float16)
    assert (mask @ x).dtype == torch.float16
    torch.testing.assert_close(mask @ x, torch.full_like(x, 6e4))
    batch = tm.ShortestPathMask(tm.Graph.batch([tm.cycle_graph(100)] * 2), bias=True).half()
    torch.testing.assert_close(batch @ torch.cat([x, x], 1), torch.full((1, 200, 1), 6e4, dtype=torch.float16))


def test_bad_arguments_are_named():
    graph = tm.path_graph(3)
    for options, match in (
        ({"num_heads": 0}, "num_heads"),
        ({"max_distance": -1}, "max_distance"),
        ({"max_distance": 40_000}, "at most 32766"),
        ({"initial": torch.ones(3)}, r"`initial` must have shape \[max_distance \+ 1=9\]"),
        ({"boundaries": [1.0], "initial": torch.ones(3)}, r"len\(boundaries\) \+ 1=2"),
        ({"boundaries": [1.0], "max_distance": 3}, "Pass only one of them"),
        ({"boundaries": []}, "strictly ascending"),
        ({"boundaries": [2.0, 1.0]}, "strictly ascending"),
        ({"boundaries": [1.0, 1.0]}, "strictly ascending"),
        ({"boundaries": [-1.0, 1.0]}, "must be nonnegative"),
        ({"boundaries": [float("nan")]}, "finite"),
        ({"unreachable": float("-inf")}, "`unreachable` must be finite"),
    ):
        with pytest.raises(ValueError, match=match):
            tm.ShortestPathMask(graph, **options)
    with pytest.raises(ValueError, match="negative weights"):
        tm.ShortestPathMask(signed_graph(), boundaries=[1.0])
