import copy

import pytest
import torch

import topomask as tm
from helpers.graphs import ragged_graph
from helpers.mask_cases.positions import position_mask
from helpers.mask_cases.walks import walk_mask
from topomask.nn import MaskedAttention


def layer(mask=None, **options) -> MaskedAttention:
    torch.manual_seed(0)
    mask = walk_mask(ragged_graph(), num_heads=4) if mask is None else mask
    return MaskedAttention(16, 4, mask, **options).double()


@pytest.mark.parametrize("kind", ["linear", "softmax"])
@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
def test_shapes_and_gradients(kind, num_kv_heads):
    module = layer(kind=kind, num_kv_heads=num_kv_heads)
    x = torch.randn(3, 11, 16, dtype=torch.float64)
    out = module(x)
    assert out.shape == x.shape
    out.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


def test_block_diagonal_input_equals_one_by_one():
    module = layer()
    graphs = [tm.cycle_graph(5), tm.path_graph(1), ragged_graph()]
    x = torch.randn(17, 16, dtype=torch.float64)
    together = module(x, graph=tm.Graph.batch(graphs))
    parts = [module(part, graph=graph) for part, graph in zip(x.split([5, 1, 11]), graphs, strict=True)]
    torch.testing.assert_close(together, torch.cat(parts))


def test_walks_sampled_ahead_of_time():
    module, graph = layer(), tm.cycle_graph(5)
    x = torch.randn(5, 16, dtype=torch.float64)
    sampled = module.mask.sample(graph)
    assert torch.equal(module(x, graph, sampled), module(x, graph))
    with pytest.raises(ValueError, match="Pass the graph too"):
        module(x, walks=sampled)


def test_mask_matters_and_batch_rows_do_not_mix():
    module = layer()
    x = torch.randn(2, 11, 16, dtype=torch.float64)
    assert not torch.allclose(module(x), module(x, graph=tm.path_graph(11)))
    torch.testing.assert_close(module(x)[1], module(x[1]))


def test_one_mask_serves_many_layers():
    mask = walk_mask(ragged_graph(), num_heads=4)
    first, second = layer(mask), layer(mask)
    second(first(torch.randn(11, 16, dtype=torch.float64))).sum().backward()
    assert mask.modulation.weight.grad is not None
    assert first.mask is second.mask


def test_padding_and_dropout():
    module = layer(dropout=0.5, strategy="pairs")
    x = torch.randn(2, 11, 16, dtype=torch.float64)
    padded = torch.zeros(2, 11, dtype=torch.bool)
    padded[0, 3] = True
    assert not torch.equal(module(x), module(x))
    module.eval()
    changed = x.clone()
    changed[0, 3] += 100.0
    seen = torch.arange(11) != 3
    torch.testing.assert_close(
        module(x, key_padding_mask=padded)[0, seen], module(changed, key_padding_mask=padded)[0, seen]
    )


def test_deepcopy_trains_apart():
    module = layer()
    other = copy.deepcopy(module)
    other(torch.randn(11, 16, dtype=torch.float64)).sum().backward()
    assert module.query.weight.grad is None


def test_state_dict_round_trip_restores_the_walks():
    trained = layer(walk_mask(ragged_graph(), num_heads=4, seed=3))
    fresh = layer(walk_mask(ragged_graph(), num_heads=4, seed=4))
    fresh.load_state_dict(trained.state_dict())
    x = torch.randn(11, 16, dtype=torch.float64)
    assert torch.equal(fresh(x), trained(x))


def test_normalizer_is_that_of_the_mask_unless_given():
    x = torch.randn(2, 11, 16, dtype=torch.float64)
    masks = {"absolute": walk_mask(ragged_graph(), num_heads=4), "signed": position_mask(11, num_heads=4)}
    for own, mask in masks.items():
        found = {name: layer(mask, normalizer=name)(x) for name in (None, "absolute", "signed")}
        assert torch.equal(found[None], found[own])
        assert not torch.equal(found["absolute"], found["signed"])


def test_autocast():
    module = layer().float()
    x = torch.randn(2, 11, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = module(x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), module(x), rtol=0.02, atol=0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(dim=15), "multiple"),
        (dict(num_kv_heads=3), "num_kv_heads"),
        (dict(kind="cosine"), "kind"),
        (dict(strategy="fast"), "strategy"),
        (dict(normalizer="l2"), "normalizer"),
        (dict(dropout=2.0), "dropout"),
        (dict(num_kv_heads=0), "num_kv_heads"),
        (dict(kind="softmax", feature_map="elu"), "feature_map"),
        (dict(kind="softmax", feature_map="relu"), "softmax attention has none, but it is 'relu'"),
        (dict(feature_map="rellu"), "`feature_map` must be one of"),
        (dict(kind="softmax", normalizer="none"), "`normalizer` must be one of .* for kind='softmax'"),
        (dict(kind="softmax", strategy="product"), "`strategy` must be one of .* for kind='softmax'"),
        (dict(mask=torch.ones(6, 6)), "`mask` must be a topomask.Mask, but is a Tensor. Wrap a matrix in DenseMask"),
        (dict(mask=walk_mask(ragged_graph(), num_heads=2)), "one head or 4"),
    ],
)
def test_bad_arguments_are_named(options, message):
    arguments = dict(dim=16, num_heads=4, mask=walk_mask(ragged_graph(), num_heads=4)) | options
    with pytest.raises(ValueError, match=message):
        MaskedAttention(**arguments)
