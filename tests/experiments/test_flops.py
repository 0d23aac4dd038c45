import pytest

from experiments.flops import WIDTH, count_features, count_flops, count_pairs, make_mask


def test_operations_without_a_mask_are_those_of_the_products():
    found = count_flops(64, seeds=[0])
    # Scores, then values and the denominator, for all pairs; a multiplication and an addition each.
    assert found["softmax"] == 2 * 64 * 64 * (WIDTH + WIDTH + 1)
    # Keys with values and ones, then queries with those.
    assert found["linear"] == 2 * 2 * 64 * WIDTH * (WIDTH + 1)


@pytest.mark.parametrize("way", ["masked", "features"])
def test_operations_with_a_mask_grow_with_the_tokens_alone(way):
    small, large = (count_flops(count, seeds=range(3))[way] for count in (512, 2048))
    assert large / small == pytest.approx(4.0, rel=0.05)


def test_both_ways_count_scores_mask_values_and_denominator():
    mask = make_mask(50, seed=1)
    query, key = (side.to_dense(mask.f)[0] != 0 for side in mask.walks)
    pairs = int((mask.to_dense()[0] != 0).sum())
    # An entry is a sum over the nodes where the walks of its query and key meet.
    meetings = int((query.double() @ key.double().mT).sum())
    assert count_pairs(mask) == 2 * (pairs * (WIDTH + 1 + WIDTH + 1) + meetings)
    nonzeros = int(query.sum() + key.sum())
    assert count_features(mask) == 2 * WIDTH * (WIDTH + 1) * (50 + nonzeros + 50)


def test_the_plan_of_this_machine_decides_nothing(monkeypatch):
    monkeypatch.setattr("topomask.plan_attention", None)
    masks = [make_mask(50, seed) for seed in (1, 2)]
    found = count_flops(50, seeds=(1, 2))
    assert found["masked"] == sum(map(count_pairs, masks)) / 2
    assert found["features"] == sum(map(count_features, masks)) / 2
