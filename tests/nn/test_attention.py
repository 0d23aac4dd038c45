import copy

import pytest
import torch
from torch.nn import functional as F

import topomask as tm
from helpers.graphs import ragged_graph
from helpers.mask_cases.positions import position_mask
from helpers.mask_cases.walks import walk_mask
from topomask.nn import Attention, MaskedAttention


def make_layer(**options) -> Attention:
    torch.manual_seed(0)
    return Attention(16, 4, **options).double()


def tokens(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("kind", ["linear", "softmax"])
@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
def test_shapes_and_gradients(kind, num_kv_heads):
    layer = make_layer(kind=kind, num_kv_heads=num_kv_heads)
    x = tokens(3, 11, 16)
    out = layer(x)
    assert out.shape == x.shape
    torch.testing.assert_close(layer(x[0]), out[0])
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in layer.parameters() if p is not layer.key.bias)


def test_softmax_equals_the_formula():
    layer, x = make_layer(kind="softmax"), tokens(2, 7, 16)
    q, k, v = (part(x).view(2, 7, 4, 4).permute(0, 2, 1, 3) for part in (layer.query, layer.key, layer.value))
    attended = F.scaled_dot_product_attention(q, k, v).permute(0, 2, 1, 3).reshape(2, 7, 16)
    torch.testing.assert_close(layer(x), layer.out(attended))


def test_layers_without_a_mask_equal_layers_with_a_mask_of_ones():
    ones = tm.DenseMask(torch.ones(9, 9, dtype=torch.float64))
    for kind in ("linear", "softmax"):
        layer = make_layer(kind=kind)
        masked = tm.nn.MaskedAttention(16, 4, ones, kind=kind).double()
        masked.load_state_dict(layer.state_dict(), strict=False)
        torch.testing.assert_close(layer(tokens(2, 9, 16)), masked(tokens(2, 9, 16)))


@pytest.mark.parametrize("kind", ["linear", "softmax"])
def test_padding_is_not_seen(kind):
    layer, x = make_layer(kind=kind), tokens(2, 9, 16)
    padded = torch.zeros(2, 9, dtype=torch.bool)
    padded[0, 6:] = True
    whole = layer(x, key_padding_mask=padded)
    torch.testing.assert_close(whole[0, :6], layer(x[0, :6]))
    torch.testing.assert_close(whole[1], layer(x[1]))
    poisoned = x.clone()
    poisoned[0, 6:] = torch.nan
    assert torch.equal(layer(poisoned, key_padding_mask=padded)[0, :6], whole[0, :6])


@pytest.mark.parametrize("kind", ["linear", "softmax"])
@pytest.mark.parametrize("shape", [(9,), (1, 9), (2, 3, 9), (6, 9)])
def test_padding_of_one_row_or_of_all_inputs(kind, shape):
    layer, x = make_layer(kind=kind), tokens(2, 3, 9, 16)
    padded = torch.zeros(shape, dtype=torch.bool)
    padded[..., 6:] = True
    torch.testing.assert_close(layer(x, key_padding_mask=padded)[..., :6, :], layer(x[..., :6, :]))


@pytest.mark.parametrize("kind", ["linear", "softmax"])
@pytest.mark.parametrize(
    ("padded", "message"),
    [
        (torch.zeros(2, 9), "`key_padding_mask` must be boolean"),
        (torch.zeros(2, 9, dtype=torch.int64), "`key_padding_mask` must be boolean"),
        (torch.zeros(2, 1, dtype=torch.bool), r"shape \[..., N_k=9\]"),
        (torch.zeros(3, 9, dtype=torch.bool), "one row per input, 2, but has 3"),
    ],
)
def test_padding_that_does_not_fit_is_named(kind, padded, message):
    with pytest.raises(ValueError, match=message):
        make_layer(kind=kind)(tokens(2, 9, 16), key_padding_mask=padded)


def test_softmax_drops_pairs_while_training_only():
    layer, x = make_layer(kind="softmax", dropout=0.5), tokens(1, 9, 16)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(kind="cosine"), "kind"),
        (dict(kind="softmax", feature_map="elu"), "feature_map"),
        (dict(kind="softmax", feature_map="relu"), "softmax attention has none, but it is 'relu'"),
        (dict(feature_map="rellu"), "`feature_map` must be one of"),
        (dict(kind="softmax", normalizer="signed"), "normalizer"),
        (dict(normalizer="max"), "normalizer"),
        (dict(dropout=0.1), "acts on pairs"),
        (dict(dropout=1.0, kind="softmax"), "dropout"),
        (dict(num_kv_heads=3), "num_kv_heads"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Attention(16, 4, **options)


def masked_layer(mask=None, **options) -> MaskedAttention:
    torch.manual_seed(0)
    mask = walk_mask(ragged_graph(), num_heads=4) if mask is None else mask
    return MaskedAttention(16, 4, mask, **options).double()


@pytest.mark.parametrize("kind", ["linear", "softmax"])
@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
def test_shapes_and_gradients_with_a_mask(kind, num_kv_heads):
    module = masked_layer(kind=kind, num_kv_heads=num_kv_heads)
    x = torch.randn(3, 11, 16, dtype=torch.float64)
    out = module(x)
    assert out.shape == x.shape
    out.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


def test_block_diagonal_input_equals_one_by_one():
    module = masked_layer()
    graphs = [tm.cycle_graph(5), tm.path_graph(1), ragged_graph()]
    x = torch.randn(17, 16, dtype=torch.float64)
    together = module(x, graph=tm.Graph.batch(graphs))
    parts = [module(part, graph=graph) for part, graph in zip(x.split([5, 1, 11]), graphs, strict=True)]
    torch.testing.assert_close(together, torch.cat(parts))


def test_walks_sampled_ahead_of_time():
    module, graph = masked_layer(), tm.cycle_graph(5)
    x = torch.randn(5, 16, dtype=torch.float64)
    sampled = module.mask.sample(graph)
    assert torch.equal(module(x, graph, sampled), module(x, graph))
    with pytest.raises(ValueError, match="Pass the graph too"):
        module(x, walks=sampled)


def test_mask_matters_and_batch_rows_do_not_mix():
    module = masked_layer()
    x = torch.randn(2, 11, 16, dtype=torch.float64)
    assert not torch.allclose(module(x), module(x, graph=tm.path_graph(11)))
    torch.testing.assert_close(module(x)[1], module(x[1]))


def test_one_mask_serves_many_layers():
    mask = walk_mask(ragged_graph(), num_heads=4)
    first, second = masked_layer(mask), masked_layer(mask)
    second(first(torch.randn(11, 16, dtype=torch.float64))).sum().backward()
    assert mask.modulation.weight.grad is not None
    assert first.mask is second.mask


def test_padding_and_dropout():
    module = masked_layer(dropout=0.5, strategy="pairs")
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
    module = masked_layer()
    other = copy.deepcopy(module)
    other(torch.randn(11, 16, dtype=torch.float64)).sum().backward()
    assert module.query.weight.grad is None


def test_state_dict_round_trip_restores_the_walks():
    trained = masked_layer(walk_mask(ragged_graph(), num_heads=4, seed=3))
    fresh = masked_layer(walk_mask(ragged_graph(), num_heads=4, seed=4))
    fresh.load_state_dict(trained.state_dict())
    x = torch.randn(11, 16, dtype=torch.float64)
    assert torch.equal(fresh(x), trained(x))


def test_normalizer_is_that_of_the_mask_unless_given():
    x = torch.randn(2, 11, 16, dtype=torch.float64)
    masks = {"absolute": walk_mask(ragged_graph(), num_heads=4), "signed": position_mask(11, num_heads=4)}
    for own, mask in masks.items():
        found = {name: masked_layer(mask, normalizer=name)(x) for name in (None, "absolute", "signed")}
        assert torch.equal(found[None], found[own])
        assert not torch.equal(found["absolute"], found["signed"])


def test_autocast():
    module = masked_layer().float()
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
def test_bad_arguments_are_named_with_a_mask(options, message):
    arguments = dict(dim=16, num_heads=4, mask=walk_mask(ragged_graph(), num_heads=4)) | options
    with pytest.raises(ValueError, match=message):
        MaskedAttention(**arguments)
