import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import shortest_path

from topomask.ops import forest_table as ops
from topomask.ops.forest_table import count_transformed_levels, decompose, decomposition, forest_table, numba, reference


def random_tree(num_nodes: int, kind: str, rng: np.random.Generator) -> np.ndarray:
    """Edges of a tree, [2, N - 1], with nodes numbered at random."""
    child = np.arange(1, num_nodes)
    parent = {
        "recursive": np.floor(rng.random(num_nodes - 1) * child).astype(np.int64),
        "path": child - 1,
        "star": np.zeros(num_nodes - 1, np.int64),
        "caterpillar": np.maximum(0, child - 1 - rng.integers(0, 3, num_nodes - 1)),
    }[kind]
    return rng.permutation(num_nodes)[np.stack([parent, child])]


def make(num_nodes: int, kind: str, seed: int, longest: int = 1, keep: float = 1.0):
    """Cuts of a random forest, its matrix, and distances between all nodes."""
    rng = np.random.default_rng(seed)
    edges = random_tree(num_nodes, kind, rng)
    edges = edges[:, rng.random(edges.shape[1]) < keep]
    lengths = rng.integers(1, longest, edges.shape[1], endpoint=True)
    both = np.concatenate([edges, edges[::-1]], axis=1)
    matrix = sp.csr_array((np.tile(lengths, 2), both), shape=(num_nodes, num_nodes))
    cuts = decompose(matrix.indptr, matrix.indices, matrix.data)
    return cuts, matrix, torch.from_numpy(shortest_path(matrix, directed=False))


def dense(f: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
    together = distances.isfinite()
    return torch.where(together, f[:, torch.where(together, distances, 0.0).long()], 0.0)


@pytest.mark.parametrize("kind", ["recursive", "path", "star", "caterpillar"])
@pytest.mark.parametrize("longest", [1, 30])
@pytest.mark.parametrize("direct", [1e9, 0.0])
def test_matches_all_distances(monkeypatch, kind, longest, direct):
    """By both backends, forward and backward; with transforms for all cuts or for none."""
    monkeypatch.setattr(decomposition, "_DIRECT", direct)
    for num_nodes, keep in ((1, 1.0), (2, 1.0), (3, 1.0), (64, 1.0), (101, 0.9), (150, 0.5)):
        cuts, _, distances = make(num_nodes, kind, num_nodes, longest, keep)
        assert count_transformed_levels(cuts) == (len(cuts.slots) if direct == 0.0 else 0)
        size = int(distances[distances.isfinite()].max()) + 1
        f = torch.randn(2, size, dtype=torch.float64, requires_grad=True)
        x, grad = torch.randn(2, 3, 2, num_nodes, 5, dtype=torch.float64)
        expected = dense(f, distances) @ x
        (grad_f,) = torch.autograd.grad((expected * grad).sum(), [f])
        for backend in (reference, numba):
            torch.testing.assert_close(backend.forest_table(cuts, f.detach(), x), expected)
            torch.testing.assert_close(backend.forest_table_backward(cuts, f.detach(), x, grad), grad_f)


def test_every_pair_is_met_once():
    """In the cuts themselves: across exactly one cut, whose distances add up to theirs."""
    cuts, _, distances = make(90, "recursive", 1, keep=0.95)
    met = torch.zeros(90, 90, dtype=torch.int64)
    for level in range(len(cuts.slots)):
        begin, end = int(cuts.level_ptr[level]), int(cuts.level_ptr[level + 1])
        pointers = cuts.slot_ptr[begin : end + 1] - cuts.slot_ptr[begin]
        side = torch.bucketize(cuts.slots[level].long(), pointers[1:], right=True)
        length = cuts.distances[cuts.slot_ptr[begin] + cuts.slots[level].clamp(min=0).long()]
        active = cuts.slots[level] >= 0
        across = active[:, None] & active & (side[:, None] // 2 == side // 2) & (side[:, None] != side)
        met += across
        found = distances[cuts.nodes][:, cuts.nodes]
        assert (found[across] == (length[:, None] + length)[across]).all()
    together = distances[cuts.nodes][:, cuts.nodes].isfinite()
    assert torch.equal(met, (together & ~torch.eye(90, dtype=torch.bool)).long())


@pytest.mark.parametrize("kind", ["path", "star", "recursive"])
def test_levels_are_few_and_sides_are_balanced(kind):
    num_nodes = 20_000
    cuts, _, _ = make_cuts_only(num_nodes, kind)
    assert len(cuts.slots) <= np.log(num_nodes) / np.log(1.5) + 1
    sizes = cuts.runs[:, 1] - cuts.runs[:, 0]
    assert int(sizes.max()) == num_nodes
    # As many nodes and joints as nodes at most were written, so memory is that of the levels.
    assert cuts.slots.numel() == len(cuts.slots) * num_nodes


def make_cuts_only(num_nodes: int, kind: str):
    rng = np.random.default_rng(0)
    edges = random_tree(num_nodes, kind, rng)
    both = np.concatenate([edges, edges[::-1]], axis=1)
    matrix = sp.csr_array((np.ones(both.shape[1], np.int64), both), shape=(num_nodes, num_nodes))
    return decompose(matrix.indptr, matrix.indices), matrix, None


def test_without_numba(monkeypatch):
    """Plain Python cuts the same way."""
    cuts, matrix, _ = make(60, "recursive", 4, longest=5)
    monkeypatch.setenv("TOPOMASK_BACKEND", "reference")
    again = decompose(matrix.indptr, matrix.indices, matrix.data)
    for a, b in zip(cuts, again, strict=True):
        assert torch.equal(a, b)


def test_op_is_registered():
    cuts, _, _ = make(20, "recursive", 2)
    f = torch.randn(2, 21, dtype=torch.float64, requires_grad=True)
    x = torch.randn(1, 2, 20, 3, dtype=torch.float64, requires_grad=True)
    ops._forest_table.check(ops._Sums(cuts, f, x))
    assert torch.autograd.gradcheck(lambda f, x: forest_table(cuts, f, x), (f, x), fast_mode=True)


def test_wide_and_ragged_columns():
    """More columns than a task takes, and a rest."""
    cuts, _, distances = make(40, "caterpillar", 3)
    f, x = torch.randn(1, 41, dtype=torch.float64), torch.randn(1, 1, 40, 131, dtype=torch.float64)
    torch.testing.assert_close(forest_table(cuts, f, x), dense(f, distances) @ x)
