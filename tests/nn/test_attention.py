import pytest
import torch
from torch.nn import functional as F

import topomask as tm
from topomask.nn import Attention


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
