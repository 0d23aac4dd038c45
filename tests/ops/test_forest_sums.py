import numpy as np
import pytest
import torch

import topomask as tm
from topomask.ops import forest_sums as ops
from topomask.ops.forest_sums import forest_sums, numba, reference
from topomask.ops.rooted_forest import diameter, distances, root_forest


def random_tree(num_nodes: int, seed: int = 0) -> tm.Graph:
    rng = np.random.default_rng(seed)
    child = np.arange(1, num_nodes)
    parent = np.floor(rng.random(num_nodes - 1) * child).astype(np.int64)
    return tm.Graph.from_edges(rng.permutation(num_nodes)[np.stack([parent, child])], num_nodes)


GRAPHS = {
    "one node": lambda: tm.path_graph(1),
    "path": lambda: tm.path_graph(20),
    "tree": lambda: random_tree(37),
    "forest": lambda: tm.Graph.batch([random_tree(9), tm.path_graph(1), random_tree(30, 1)]),
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("growing", [False, True])
def test_matches_all_distances(name, growing):
    """Two terms, three heads, by both backends, forward and backward."""
    graph = GRAPHS[name]()
    forest, size = root_forest(graph.indptr, graph.indices), graph.num_nodes
    torch.manual_seed(0)
    lengths = torch.rand(size, dtype=torch.float64) * (forest.above >= 0)
    found, together = distances(forest, lengths)
    rates = 0.3 * torch.randn(3, 2, dtype=torch.float64) if growing else -torch.rand(3, 2, dtype=torch.float64)
    rates.requires_grad_()
    c = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    for columns in (5, 1, 0, 70):
        x = torch.randn(2, 3, size, columns, dtype=torch.float64, requires_grad=True)
        dense = torch.einsum("hr,hrij->hij", c, (rates[:, :, None, None] * found).exp() * together)
        expected, grad = dense @ x, torch.randn_like(x)
        wanted = torch.autograd.grad((expected * grad).sum(), [rates, c, x])
        logs = rates[:, :, None] * lengths
        for backend in (numba, reference):
            sums = ops.Sums(forest, logs.detach(), c.detach(), x.detach(), growing)
            torch.testing.assert_close(backend.forest_sums(sums), expected)
            grads = backend.forest_sums_backward(sums, grad)
            got = (grads["logs"] * lengths).sum(dim=-1), grads["coefficients"], grads["x"]
            for a, b in zip(got, wanted, strict=True):
                torch.testing.assert_close(a, b)


def test_distances_and_diameter_match_networkx():
    nx = pytest.importorskip("networkx", reason="an extra")
    graph = random_tree(40, 3)
    forest = root_forest(graph.indptr, graph.indices)
    ones = (forest.above >= 0).double()
    found = dict(nx.all_pairs_shortest_path_length(nx.from_scipy_sparse_array(graph.to_scipy())))
    expected = torch.tensor([[float(found[i][j]) for j in range(40)] for i in range(40)], dtype=torch.float64)
    torch.testing.assert_close(distances(forest, ones)[0], expected)
    assert diameter(forest, ones) == expected.max()


def test_op_is_registered():
    graph = random_tree(12)
    forest = root_forest(graph.indptr, graph.indices)
    logs = (-torch.rand(2, 1, 12, dtype=torch.float64)).requires_grad_()
    c = torch.randn(2, 1, dtype=torch.float64, requires_grad=True)
    x = torch.randn(1, 2, 12, 3, dtype=torch.float64, requires_grad=True)
    ops._forest_sums.check(ops.Sums(forest, logs, c, x, False))
    assert torch.autograd.gradcheck(lambda *inputs: forest_sums(forest, *inputs), (logs, c, x), fast_mode=True)
