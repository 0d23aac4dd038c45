import pytest

import topomask as tm
from topomask.recipes.flops import WIDTH, count_flops, make_mask


def test_operations_without_a_mask_are_those_of_the_products():
    found = count_flops(64, seeds=[0])
    # Two products of N x N with width 8, a multiplication and an addition each.
    assert found["softmax"] == 2 * 2 * 64 * 64 * WIDTH
    # Keys with values and ones, then queries with those.
    assert found["linear"] == 2 * 2 * 64 * WIDTH * (WIDTH + 1)


def test_operations_with_a_mask_grow_with_the_tokens_alone():
    small, large = (count_flops(count, seeds=range(3))["masked"] for count in (512, 2048))
    assert large / small == pytest.approx(4.0, rel=0.05)


def test_every_pair_counts_where_pairs_are_taken(monkeypatch):
    mask = make_mask(50, seed=1)
    monkeypatch.setattr(tm, "plan_attention", lambda *_: type("Plan", (), {"strategy": "pairs"}))
    pairs = int((mask.to_dense()[0] != 0).sum())
    assert count_flops(50, seeds=[1])["masked"] >= 2 * 2 * pairs * WIDTH
    monkeypatch.setattr(tm, "plan_attention", lambda *_: type("Plan", (), {"strategy": "features"}))
    sides = mask.features if isinstance(mask.features, tuple) else (mask.features,)
    nonzeros = sum(side.num_nonzeros for side in sides)
    assert count_flops(50, seeds=[1])["masked"] == 2 * WIDTH * (WIDTH + 1) * (nonzeros + 100)
