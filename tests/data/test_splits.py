import pytest
import torch

from topomask.data import stratified_split
from topomask.data.splits import check_split, choose, derived_seed, first, seeded_generator

LABELS = torch.tensor([0] * 50 + [1] * 30 + [2] * 3)[torch.randperm(83, generator=torch.Generator().manual_seed(0))]


def test_parts_are_disjoint_cover_everything_and_share_the_classes():
    parts = stratified_split(LABELS, (0.2, 0.1, 0.7), seed=3)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(83))
    assert [torch.bincount(LABELS[part], minlength=3).tolist() for part in parts] == [
        [10, 6, 1],
        [5, 3, 0],
        [35, 21, 2],
    ]
    assert all(torch.equal(part, part.sort().values) for part in parts)


def test_a_split_depends_on_the_seed_only():
    state = torch.random.get_rng_state()
    one, same, other = (stratified_split(LABELS, (0.5, 0.5), seed)[0] for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("fractions", [(0.5, 0.4), (1.5, -0.5), (1.0, 1.0)])
def test_fractions_must_add_up(fractions):
    with pytest.raises(ValueError, match="`fractions` must"):
        stratified_split(LABELS, fractions)


def test_labels_must_be_integers():
    with pytest.raises(ValueError, match="`labels` must be integers"):
        stratified_split(LABELS.float(), (0.5, 0.5))


def test_train_and_val_are_complementary_and_test_is_whole():
    parts = {
        split: choose(LABELS, split, val_fraction=0.1, split_seed=0, limit=None) for split in ("train", "val", "test")
    }
    assert torch.equal(torch.cat([parts["train"], parts["val"]]).sort().values, torch.arange(83))
    assert len(parts["val"]) == 8
    assert torch.equal(parts["test"], torch.arange(83))


def test_nothing_is_held_out_unless_asked_for():
    assert len(choose(LABELS, "train", val_fraction=0.0, split_seed=0, limit=None)) == 83
    with pytest.raises(ValueError, match="split='val' is empty, because nothing is held out"):
        choose(LABELS, "val", val_fraction=0.0, split_seed=0, limit=None)
    with pytest.raises(ValueError, match="`val_fraction` must lie"):
        choose(LABELS, "train", val_fraction=1.0, split_seed=0, limit=None)


def test_limits_keep_the_first():
    assert choose(LABELS, "test", val_fraction=0.0, split_seed=0, limit=4).tolist() == [0, 1, 2, 3]
    for limit in (0, -1, 84):
        with pytest.raises(ValueError, match="`limit` must lie between 1 and the 83"):
            first(torch.arange(83), limit)


def test_unknown_splits_are_refused():
    with pytest.raises(ValueError, match="`split` of pets must be one of train, test, but is 'training'"):
        check_split("training", ("train", "test"), "pets")


def test_seeds_are_fixed_for_ever():
    """Runs on other machines and in later versions repeat the same draws."""
    assert derived_seed("order", 0, 0) == 8105155533265743171


def test_words_purposes_and_lengths_are_told_apart():
    seeds = {derived_seed(purpose, *words) for purpose in ("a", "b") for words in ((), (0,), (0, 0), (0, 1), (1, 0))}
    assert len(seeds) == 10
    assert derived_seed("a", torch.tensor(3)) == derived_seed("a", 3)


def test_generators_repeat():
    first, second = (torch.rand(5, generator=seeded_generator("x", 1)) for _ in range(2))
    assert torch.equal(first, second)
