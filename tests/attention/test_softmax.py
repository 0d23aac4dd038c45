import pytest
import torch
from torch.nn import functional as F

import topomask as tm
from helpers.graphs import ragged_graph
from helpers.mask_cases.walks import walk_mask
from helpers.tokens import EXACT, qkv


def test_a_mask_of_ones_is_plain_softmax_attention():
    q, k, v = qkv(9)
    mask = tm.DenseMask(torch.ones(9, 9, dtype=torch.float64))
    plain = F.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(tm.masked_softmax_attention(q, k, v, mask), plain, **EXACT)
    scaled = F.scaled_dot_product_attention(q, k, v, scale=0.3)
    torch.testing.assert_close(tm.masked_softmax_attention(q, k, v, mask, scale=0.3), scaled, **EXACT)


def test_softmax_with_a_positive_mask_is_an_additive_bias():
    mask = walk_mask(tm.grid_graph(3, 3), num_heads=2, f=torch.rand(2, 4, dtype=torch.float64) + 0.1)
    q, k, v = qkv(9)
    bias = mask.to_dense().log()
    plain = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    for strategy in ("pairs", "dense"):
        torch.testing.assert_close(tm.masked_softmax_attention(q, k, v, mask, strategy=strategy), plain, **EXACT)


@pytest.mark.parametrize("strategy", ["pairs", "dense"])
def test_padding_touches_nothing_in_softmax_attention(strategy):
    mask = walk_mask(ragged_graph(), num_heads=2)
    q, k, v = qkv(11)
    padded = torch.zeros(2, 11, dtype=torch.bool)
    padded[:, [2, 5]] = True
    # Finite but huge: it must not drown the other scores either.
    dirty_k = torch.where(padded[:, None, :, None], 1e4, k).requires_grad_()
    out = tm.masked_softmax_attention(q, dirty_k, v, mask, key_padding_mask=padded, strategy=strategy)
    present = (~padded[0]).nonzero().flatten()
    alone = tm.masked_softmax_attention(
        q, k[:, :, present], v[:, :, present], mask, key_nodes=present, strategy=strategy
    )
    torch.testing.assert_close(out, alone, **EXACT)
    assert torch.autograd.grad(out.sum(), dirty_k)[0].isfinite().all()


def test_softmax_queries_that_attend_to_nothing_give_zero():
    matrix = torch.ones(4, 4, dtype=torch.float64)
    matrix[2] = 0
    q, k, v = (x.requires_grad_() for x in qkv(4).unbind())
    out = tm.masked_softmax_attention(q, k, v, tm.DenseMask(matrix))
    assert (out[:, :, 2] == 0).all()
    for gradient in torch.autograd.grad(out[:, :, 2].sum(), [q, k, v]):
        assert (gradient == 0).all()


def test_the_scale_of_the_mask_cancels_in_softmax_attention():
    q, k = torch.tensor([[5.0, 0.0]]).view(1, 1, 2, 1), torch.tensor([[1.0, 0.0]]).view(1, 1, 2, 1)
    v = torch.tensor([1.0, 0.0]).view(1, 1, 2, 1)
    plain = tm.masked_softmax_attention(q, k, v, tm.DenseMask(torch.ones(2, 2)))
    tiny = tm.masked_softmax_attention(q, k, v, tm.DenseMask(torch.full((2, 2), 1e-30)))
    torch.testing.assert_close(tiny, plain)


@pytest.mark.parametrize("scale", [1e-10, 1e3, 1e10])
@pytest.mark.parametrize("strategy", ["pairs", "dense"])
def test_adversarial_scores_stay_finite_in_softmax_attention(scale, strategy):
    mask = walk_mask(ragged_graph(), num_heads=2).float()
    q, k, v = (x.requires_grad_() for x in qkv(11, dtype=torch.float32).unbind())
    out = tm.masked_softmax_attention(scale * q, k, v, mask, strategy=strategy)
    assert out.isfinite().all()
    for gradient in torch.autograd.grad(out.sum(), [q, k, v, *mask.parameters()]):
        assert gradient.isfinite().all()


def test_an_entry_of_zero_does_not_drown_the_others_in_softmax_attention():
    matrix = torch.tensor([[0.0, 1.0, 1.0]], dtype=torch.float32)
    q, v = torch.ones(1, 1, 1, 1), torch.tensor([1.0, 2.0, 4.0]).view(1, 1, 3, 1)
    k = torch.tensor([1000.0, 0.0, 0.0]).view(1, 1, 3, 1)
    out = tm.masked_softmax_attention(q, k, v, tm.DenseMask(matrix))
    torch.testing.assert_close(out.flatten(), torch.tensor([3.0]))


def test_softmax_refuses_what_it_cannot_do():
    q, k, v = qkv(11)
    mask = walk_mask(ragged_graph(), num_heads=2)
    with pytest.raises(ValueError, match="normalizer"):
        tm.masked_softmax_attention(q, k, v, mask, normalizer="none")
    with pytest.raises(ValueError, match="needs the entries"):
        tm.masked_softmax_attention(q, k, v, mask, strategy="product")
