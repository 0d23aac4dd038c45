"""The compiled values of features against the reference, forward and backward."""

import pytest
import torch

import topomask as tm
from helpers.graphs import ragged_batch, ragged_graph, signed_graph
from topomask.ops.feature_values import Walks, feature_values, numba, reference


@pytest.mark.parametrize("make", [ragged_graph, signed_graph, ragged_batch, lambda: tm.path_graph(1)])
@pytest.mark.parametrize("num_heads", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("start_nodes", [None, [0], []])
def test_agrees_with_the_reference(make, num_heads, dtype, start_nodes):
    features = tm.sample_features(make(), 5, 3, num_heads=num_heads, dtype=dtype, start_nodes=start_nodes)
    walks = Walks(features._head_ptr, features.entry_ptr, features.lengths, features.loads)
    f = torch.randn(num_heads, 4, dtype=dtype)
    torch.testing.assert_close(numba.feature_values(f, walks), reference.feature_values(f, walks))
    grad = torch.randn(features.num_nonzeros, dtype=dtype)
    found, expected = (op.feature_values_backward(grad, 4, walks) for op in (numba, reference))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("make", [ragged_graph, signed_graph, lambda: tm.path_graph(1)])
@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("start_nodes", [None, []])
def test_heads_may_share_walks(make, backend, dtype, start_nodes, monkeypatch):
    monkeypatch.setenv("TOPOMASK_BACKEND", backend)
    walks = tm.sample_features(make(), 5, 3, dtype=dtype, start_nodes=start_nodes)
    entries = (walks.entry_ptr, walks.lengths, walks.loads)
    f = torch.randn(3, 4, dtype=dtype, requires_grad=True)
    found = feature_values(f, None, *entries)
    expected = torch.stack([feature_values(row[None], walks._head_ptr, *entries) for row in f])
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(found)
    grads = [torch.autograd.grad((x * weights).sum(), f)[0] for x in (found, expected)]
    torch.testing.assert_close(*grads)


def test_shared_walks_are_differentiable_twice():
    walks = tm.sample_features(ragged_graph(), 5, 3, dtype=torch.float64)
    f = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)

    def run(f):
        return feature_values(f, None, walks.entry_ptr, walks.lengths, walks.loads).square()

    assert torch.autograd.gradcheck(run, f)
    assert torch.autograd.gradgradcheck(run, f)
