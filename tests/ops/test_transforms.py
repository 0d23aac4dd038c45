"""Ops inside transforms of torch.func."""

import pytest
import torch
from torch.autograd import forward_ad

from helpers.graphs import ragged_graph
from helpers.mask_cases.walks import walk_mask
from topomask.ops import pair_attention
from topomask.ops.pair_attention import Attention
from topomask.ops.sparse_product import spmm


def entries() -> tuple:
    pattern, values, _ = walk_mask(ragged_graph(), num_heads=2, shared_heads=True).on().entries()
    return pattern, values.detach()


def attend(q, k, v, pattern, values):
    return pair_attention._pair_attention(Attention(pattern, values, None, q, k, v, None, True, False, True))


def test_a_batch_of_calls_is_one_call_where_items_do_not_depend_on_each_other(monkeypatch):
    pattern, values = entries()
    q, k, v = torch.randn(3, 5, 4, 11, 3, dtype=torch.float64)
    expected = torch.stack([attend(*item, pattern, values) for item in zip(q, k, v, strict=True)])
    calls = []
    backend = pair_attention.implementation("topomask.ops.pair_attention", q)
    original = backend.pair_attention
    monkeypatch.setattr(backend, "pair_attention", lambda x: calls.append(1) or original(x))
    found = torch.func.vmap(lambda q, k, v: attend(q, k, v, pattern, values))(q, k, v)
    torch.testing.assert_close(found, expected)
    assert len(calls) == 1
    # Values that differ are not items of one call. The axis of the calls may be any.
    several = torch.stack([values * scale for scale in range(1, 6)], dim=-1)
    found = torch.func.vmap(lambda v, values: attend(q[0], k[0], v, pattern, values), (2, -1), 1)(
        v.movedim(0, 2), several
    )
    expected = torch.stack([attend(q[0], k[0], v[n], pattern, several[..., n]) for n in range(5)], dim=1)
    torch.testing.assert_close(found, expected)


def test_gradients_of_what_calls_share_are_those_of_every_call():
    pattern, values = entries()
    q, k, v = torch.randn(3, 5, 4, 11, 3, dtype=torch.float64)

    def loss(values, q, k, v):
        return attend(q, k, v, pattern, values).square().sum()

    found = torch.func.vmap(torch.func.grad(loss), (None, 0, 0, 0))(values, q, k, v)
    for number in range(5):
        learnt = values.clone().requires_grad_()
        (expected,) = torch.autograd.grad(loss(learnt, q[number], k[number], v[number]), learnt)
        torch.testing.assert_close(found[number], expected)


def test_second_derivatives_work_or_are_refused_with_a_sentence():
    pattern, values = entries()
    x = torch.randn(11, 3, dtype=torch.float64)

    def energy(values):
        return spmm(pattern, values, spmm(pattern, values, x)).square().sum()

    hessian = torch.func.jacrev(torch.func.grad(energy))(values[0])
    torch.testing.assert_close(hessian, torch.autograd.functional.hessian(energy, values[0]))
    q, k, v = torch.randn(3, 2, 11, 3, dtype=torch.float64)
    slope = torch.func.grad(lambda q: attend(q, k, v, pattern, values).square().sum())
    with pytest.raises(NotImplementedError, match=r"pair_attention_backward has no derivative.*strategy='dense'"):
        torch.func.grad(lambda q: slope(q).sum())(q)


def test_forward_mode_is_refused_with_a_sentence_rather_than_0():
    pattern, values = entries()
    x = torch.randn(11, 3, dtype=torch.float64)
    message = r"topomask::spmm has no forward-mode derivative.*torch\.func\.jvp.*strategy='dense'"
    with pytest.raises(NotImplementedError, match=message):
        torch.func.jvp(lambda x: spmm(pattern, values[0], x), (x,), (x,))
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=message):
        spmm(pattern, values[0], forward_ad.make_dual(x, x))
    # Tensors without a tangent are computed as usual.
    with forward_ad.dual_level():
        inside = spmm(pattern, values[0], x)
    assert torch.equal(inside, spmm(pattern, values[0], x))
