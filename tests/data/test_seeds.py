import torch

from topomask.data.seeds import derived_seed, seeded_generator


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
