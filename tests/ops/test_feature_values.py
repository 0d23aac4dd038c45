"""The compiled values of features against the reference, forward and backward."""

import pytest
import torch

import topomask as tm
from registry import ragged_batch, ragged_graph, signed_graph
from topomask.ops.feature_values import numba, reference


@pytest.mark.parametrize("make", [ragged_graph, signed_graph, ragged_batch, lambda: tm.path_graph(1)])
@pytest.mark.parametrize("num_heads", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("start_nodes", [None, [0], []])
def test_agrees_with_the_reference(make, num_heads, dtype, start_nodes):
    features = tm.sample_features(make(), 5, 3, num_heads=num_heads, dtype=dtype, start_nodes=start_nodes)
    structure = (features.head_ptr, features.entry_ptr, features.lengths, features.loads)
    f = torch.randn(num_heads, 4, dtype=dtype)
    torch.testing.assert_close(numba.feature_values(f, *structure), reference.feature_values(f, *structure))
    grad = torch.randn(features.num_nonzeros, dtype=dtype)
    found, expected = (op.feature_values_backward(grad, 4, *structure) for op in (numba, reference))
    torch.testing.assert_close(found, expected)
