import pytest
import torch

import topomask as tm
from helpers.graphs import ragged_graph
from helpers.mask_cases.positions import position_mask
from helpers.mask_cases.walks import walk_mask
from helpers.tokens import EXACT, FEATURE_MAPS, STRATEGIES, qkv


def test_fewer_key_heads_than_query_heads():
    mask = walk_mask(ragged_graph(), num_heads=4)
    q, _, _ = qkv(11, heads=4)
    _, k, v = qkv(11, heads=2)
    for attend in (tm.masked_attention, tm.masked_softmax_attention):
        repeated = attend(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), mask)
        torch.testing.assert_close(attend(q, k, v, mask), repeated, **EXACT)


def test_any_batch_shape_and_none():
    mask = walk_mask(ragged_graph(), num_heads=2)
    q, k, v = qkv(11, batch=6)
    for attend in (tm.masked_attention, tm.masked_softmax_attention):
        out = attend(q, k, v, mask)
        nested = attend(*(x.unflatten(0, (2, 3)) for x in (q, k, v)), mask)
        torch.testing.assert_close(nested.flatten(0, 1), out, **EXACT)
        torch.testing.assert_close(attend(q[0], k[0], v[0], mask), out[0], **EXACT)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_autocast_does_not_lower_the_arithmetic(strategy):
    mask = walk_mask(ragged_graph(), num_heads=2).float()
    q, k, v = qkv(11, dtype=torch.float32)
    for feature_map in FEATURE_MAPS:
        plain = tm.masked_attention(q, k, v, mask, feature_map=feature_map, strategy=strategy)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = tm.masked_attention(q, k, v, mask, feature_map=feature_map, strategy=strategy)
        assert torch.equal(plain, cast)
    if strategy != "product":
        plain = tm.masked_softmax_attention(q, k, v, mask, strategy=strategy)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(tm.masked_softmax_attention(q, k, v, mask, strategy=strategy), plain)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_evaluating_in_inference_mode_first_does_not_spoil_training(strategy):
    mask = tm.PrefixMask(tm.WalkMask(ragged_graph(), max_length=3, seed=0))
    q, k, v = qkv(mask.on().num_keys, dtype=torch.float32, width=7)
    for attend, options in (
        (tm.masked_attention, {"feature_map": "softmax", "strategy": strategy}),
        (tm.masked_softmax_attention, {"strategy": "dense" if strategy == "product" else strategy}),
    ):
        with torch.inference_mode():
            attend(q, k, v, mask, **options)
        leaf = q.clone().requires_grad_()
        attend(leaf, k, v, mask, **options).sum().backward()
        assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("attend", [tm.masked_attention, tm.masked_softmax_attention])
@pytest.mark.parametrize("strategy", ["pairs", "dense"])
def test_dropout_drops_pairs(attend, strategy):
    """The mean over draws is the answer without dropout (a z-test at 1e-6 per number), and draws differ."""
    mask = walk_mask(tm.grid_graph(3, 3), num_heads=2, f=torch.rand(2, 4, dtype=torch.float64) + 0.1)
    q, k, v = qkv(9, batch=1)
    options = {"feature_map": "elu"} if attend is tm.masked_attention else {}
    torch.manual_seed(0)
    plain = attend(q, k, v, mask, strategy=strategy, **options).detach()
    draws = [attend(q, k, v, mask, strategy=strategy, dropout_p=0.4, **options).detach() for _ in range(2000)]
    draws = torch.stack(draws)
    assert draws.std(0).min() > 0
    scores = (draws.mean(0) - plain) / (draws.std(0) / len(draws) ** 0.5)
    from scipy import stats

    assert scores.abs().max() < stats.norm.isf(1e-6 / (2 * scores.numel()))


def test_a_mask_and_its_operator_are_attended_to_alike():
    mask, graph = walk_mask(ragged_graph(), num_heads=2), tm.grid_graph(3, 3)
    for attend in (tm.masked_attention, tm.masked_softmax_attention):
        q, k, v = qkv(11)
        assert torch.equal(attend(q, k, v, mask), attend(q, k, v, mask.on()))
        q, k, v = qkv(9)
        assert torch.equal(attend(q, k, v, mask.on(graph)), attend(q, k, v, walk_mask(graph, num_heads=2)))
        nodes = torch.tensor([4, 0, 2])
        options = {"query_nodes": nodes, "key_nodes": nodes}
        few = [x[:, :, :3] for x in (q, k, v)]
        selected = mask.on(graph).select(nodes, nodes)
        assert torch.equal(attend(*few, mask.on(graph), **options), attend(*few, selected))


def test_an_operator_is_attended_to_until_a_parameter_changes():
    mask = walk_mask(ragged_graph(), num_heads=2)
    operator = mask.on()
    q, k, v = qkv(11)
    for attend in (tm.masked_attention, tm.masked_softmax_attention):
        attend(q, k, v, operator)
    with torch.no_grad():
        mask.modulation.weight.mul_(2.0)
    for attend in (tm.masked_attention, tm.masked_softmax_attention):
        with pytest.raises(RuntimeError, match=r"parameter of the mask has changed.*call mask\.on"):
            attend(q, k, v, operator)
        attend(q, k, v, mask.on())


def test_a_mask_chooses_its_default_normalizer():
    """Through a prefix, a selection and on another graph too; what is asked for wins."""
    inner = position_mask(6, num_heads=2)
    q, k, v = qkv(6, heads=2)
    assert tm.WalkMask.default_normalizer == "absolute"
    assert inner.default_normalizer == "signed"
    masks = (inner, inner.on(tm.path_graph(6)), tm.PrefixMask(inner).on(tm.path_graph(5)), inner.magnitude())
    for attend in (tm.masked_attention, tm.masked_softmax_attention):
        for mask in masks:
            found = {name: attend(q, k, v, mask, normalizer=name) for name in (None, "signed", "absolute")}
            assert torch.equal(found[None], found["signed"])
            assert torch.equal(found[None], found["absolute"]) is (mask is masks[-1])
        nodes = torch.tensor([4, 0, 2, 2, 5, 1])
        found = [attend(q, k, v, inner, query_nodes=nodes, key_nodes=nodes, normalizer=n) for n in (None, "signed")]
        assert torch.equal(*found)
        walks = walk_mask(ragged_graph(), num_heads=2)
        x = qkv(11, heads=2)
        assert torch.equal(attend(*x, walks), attend(*x, walks, normalizer="absolute"))
        assert not torch.equal(attend(*x, walks), attend(*x, walks, normalizer="signed"))
