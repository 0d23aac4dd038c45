import pytest
import torch

import topomask as tm


def inputs(num_kv_heads: int = 4, dtype=torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, 7, 6), (2, num_kv_heads, 9, 6), (2, num_kv_heads, 9, 5))
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def ones() -> tm.Mask:
    return tm.DenseMask(torch.ones(7, 9, dtype=torch.float64))


@pytest.mark.parametrize("feature_map", ["relu", "elu", "exp", "softmax", "identity", torch.tanh])
@pytest.mark.parametrize("normalizer", ["absolute", "signed", "none"])
@pytest.mark.parametrize("num_kv_heads", [4, 2])
def test_equals_attention_with_a_mask_of_ones(feature_map, normalizer, num_kv_heads):
    options = dict(feature_map=feature_map, normalizer=normalizer)
    q, k, v = inputs(num_kv_heads)
    found, expected = tm.linear_attention(q, k, v, **options), tm.masked_attention(q, k, v, ones(), **options)
    torch.testing.assert_close(found, expected)
    gradients = (torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (found, expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_padding_equals_leaving_out():
    q, k, v = inputs()
    padded = torch.zeros(2, 9, dtype=torch.bool)
    padded[0, 4:] = True
    found = tm.linear_attention(q, k, v, key_padding_mask=padded)
    torch.testing.assert_close(found[0], tm.linear_attention(q, k[..., :4, :], v[..., :4, :])[0])
    torch.testing.assert_close(found[1], tm.linear_attention(q, k, v)[1])
    assert torch.autograd.grad(found.sum(), v)[0][0, :, 4:].eq(0).all()


def test_a_query_that_attends_to_nothing_gives_zero():
    q, k, v = inputs()
    with torch.no_grad():
        q[0, 0, 0] = -1.0
    out = tm.linear_attention(q, k, v)
    assert out[0, 0, 0].eq(0).all()
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(out.sum(), (q, k, v)))


def test_half_precision_stays_finite():
    q, k, v = (1e4 * x.detach().half() for x in inputs())
    out = tm.linear_attention(q, k, v, feature_map="relu")
    assert out.dtype == torch.float16
    assert out.isfinite().all()
    torch.testing.assert_close(out.double(), tm.linear_attention(*(x.double() for x in (q, k, v))), rtol=2e-3, atol=20)


def test_huge_and_tiny_features_do_not_overflow():
    q, k, v = inputs(dtype=torch.float32)
    expected = tm.linear_attention(q, k, v)
    torch.testing.assert_close(tm.linear_attention(1e30 * q, 1e-30 * k, v), expected)
    torch.testing.assert_close(tm.linear_attention(1e30 * q, 1e30 * k, v), expected)


def test_compiles():
    q, k, v = inputs()
    compiled = torch.compile(tm.linear_attention, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v), tm.linear_attention(q, k, v))


def test_bad_arguments_are_named():
    q, k, v = inputs()
    with pytest.raises(ValueError, match="normalizer"):
        tm.linear_attention(q, k, v, normalizer="l2")
    with pytest.raises(ValueError, match="feature_map"):
        tm.linear_attention(q, k, v, feature_map="cube")
    with pytest.raises(ValueError, match="`k` and `v`"):
        tm.linear_attention(q, k, v[..., 1:, :])
