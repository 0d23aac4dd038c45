import pytest
import torch
from torch.autograd import gradcheck

import topomask as tm
from helpers.graphs import ragged_graph, signed_graph
from helpers.walk_features import assert_same
from topomask.walks import WalkFeatures


def test_batch_refuses_features_that_do_not_fit():
    a, b = tm.sample_features(tm.path_graph(3), max_length=2), tm.sample_features(tm.path_graph(3), max_length=3)
    with pytest.raises(ValueError, match="max_length"):
        WalkFeatures.batch([a, b])
    with pytest.raises(ValueError, match="empty"):
        WalkFeatures.batch([])


@pytest.mark.parametrize("make", [ragged_graph, signed_graph])
def test_values_are_differentiable_in_f(make):
    features = tm.sample_features(make(), num_walks=5, max_length=3, num_heads=2, dtype=torch.float64)
    f = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    assert gradcheck(features.values, f)
    assert torch.autograd.gradgradcheck(lambda f: features.values(f).square(), f)
    torch.testing.assert_close(features.values(f[0]), features.values(f[:1].expand(2, -1)))
    with pytest.raises(ValueError, match="one number per walk length"):
        features.values(f[:, :3])


def test_values_stay_in_float32_for_half_precision():
    features = tm.sample_features(tm.grid_graph(3, 3), max_length=2)
    assert features.values(torch.ones(3, dtype=torch.float16)).dtype == torch.float32
    assert features.to(dtype=torch.float16).loads.dtype == torch.float32


@pytest.mark.parametrize("max_length", [255, 256])
def test_long_walks_are_saved_and_loaded(max_length):
    features = tm.sample_features(tm.cycle_graph(5), num_walks=1, max_length=max_length)
    again = WalkFeatures.from_state(features.state())
    assert again.fingerprint == features.fingerprint


@pytest.mark.parametrize("num_heads", [1, 3])
def test_the_features_of_a_batch_are_split_into_those_of_its_graphs(num_heads):
    parts = [tm.path_graph(1), tm.cycle_graph(5), tm.Graph.from_edges([[], []], num_nodes=2), tm.grid_graph(3, 4)]
    options = {"num_walks": 3, "max_length": 4, "num_heads": num_heads, "seed": 3}
    batch = tm.sample_features(tm.Graph.batch(parts), **options)
    for found, part in zip(batch.split([graph.num_nodes for graph in parts]), parts, strict=True):
        assert_same(found, tm.sample_features(part, **options))
        assert {name: x.dtype for name, x in found.state().items()} == {
            name: x.dtype for name, x in tm.sample_features(part, **options).state().items()
        }
    with pytest.raises(ValueError, match="`sizes` must add up to the 20 nodes of the batch"):
        batch.split([1, 5])
