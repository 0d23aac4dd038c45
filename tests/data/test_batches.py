import itertools

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from topomask.data import Augment, Batches, InMemorySet


class Squares(Dataset):
    """A data set without `tensors`, which goes through a DataLoader."""

    def __init__(self, count):
        self.count, self.asked = count, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.asked.append(index)
        return torch.tensor(index), index**2


def in_memory(count):
    return TensorDataset(torch.arange(count), torch.arange(count) ** 2)


KINDS = [in_memory, Squares]


def values(batches, *arguments, **options):
    return [batch[0].tolist() for batch in batches.epoch(*arguments, **options)]


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("count", [1, 2, 63, 100])
def test_every_example_comes_once(make, count):
    batches = Batches(make(count), 10)
    found = list(batches.epoch(0))
    assert len(found) == len(batches) == -(-count // 10)
    inputs, labels = (torch.cat(part) for part in zip(*found, strict=True))
    assert torch.equal(inputs.sort().values, torch.arange(count))
    assert torch.equal(labels, inputs**2)


def test_both_ways_of_reading_give_the_same():
    one, two = (list(Batches(make(50), 8, seed=3).epoch(2)) for make in KINDS)
    for left, right in zip(one, two, strict=True):
        assert torch.equal(left[0], right[0])
        assert torch.equal(left[1], right[1])


def test_the_order_depends_on_seed_and_epoch_only():
    torch.manual_seed(0)
    first = values(Batches(in_memory(50), 8, seed=3), 2)
    torch.manual_seed(1)
    batches = Batches(in_memory(50), 8, seed=3)
    values(batches, 0)
    assert values(batches, 2) == first
    assert values(batches, 1) != first
    assert values(Batches(in_memory(50), 8, seed=4), 2) != first
    assert values(Batches(in_memory(50), 8, seed=3, shuffle=False), 2)[0] == list(range(8))


@pytest.mark.parametrize("make", KINDS)
def test_torch_s_random_state_is_left_alone(make):
    state = torch.random.get_rng_state()
    list(Batches(make(30), 8).epoch(0))
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("skip", range(8))
def test_a_resumed_epoch_repeats_what_was_left_of_it(make, skip):
    def add_noise(inputs, generator):
        return inputs + torch.rand(inputs.shape, generator=generator)

    whole = values(Batches(make(50), 8, seed=3, transform=add_noise), 5)
    assert values(Batches(make(50), 8, seed=3, transform=add_noise), 5, skip=skip) == whole[skip:]


def test_skipped_examples_are_not_read():
    squares = Squares(50)
    found = values(Batches(squares, 8), 0, skip=5)
    assert squares.asked == [number for batch in found for number in batch]


def test_draws_of_the_transform_differ_between_batches_epochs_and_processes():
    def draw(inputs, generator):
        return torch.rand(2, generator=generator)

    found = [
        tuple(numbers)
        for rank in range(2)
        for epoch in range(3)
        for numbers in values(Batches(in_memory(40), 10, transform=draw).shard(rank, 2), epoch)
    ]
    assert len(set(found)) == len(found) == 24


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("count", [60, 64, 71])
@pytest.mark.parametrize("drop_last", [False, True])
def test_processes_share_every_step(world_size, count, drop_last):
    options = dict(seed=1, drop_last=drop_last)
    shares = [values(Batches(in_memory(count), 12, **options).shard(rank, world_size), 0) for rank in range(world_size)]
    assert len({len(share) for share in shares}) == 1
    together = [sorted(itertools.chain(*step)) for step in zip(*shares, strict=True)]
    alone = values(Batches(in_memory(count), 12, **options), 0)
    assert together == [sorted(step) for step in alone]
    assert drop_last or sorted(itertools.chain(*together)) == list(range(count))


def test_processes_share_a_rest_that_is_too_small_for_all():
    shares = [values(Batches(in_memory(13), 12, shuffle=False).shard(rank, 3), 0) for rank in range(3)]
    assert [len(share) for share in shares] == [2, 1, 1]
    assert sorted(number for share in shares for batch in share for number in batch) == list(range(13))


def test_pictures_are_augmented_in_batches():
    pictures = torch.randint(0, 256, (20, 1, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    dataset = InMemorySet(pictures, torch.arange(20) % 2, ("a", "b"), (0.5,), (0.5,))
    augment = Augment(dataset.mean, dataset.std, flip=True, padding=1)
    batches = Batches(dataset, 8, transform=augment)
    first, second = (torch.cat([inputs for inputs, _ in batches.epoch(epoch)]) for epoch in (0, 1))
    assert first.dtype == torch.float32
    assert first.shape == (20, 1, 6, 6)
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(batch_size=0), "`batch_size` must be at least 1"),
        (dict(batch_size=4, num_workers=-1), "`num_workers` must be at least 0, but is -1"),
        (dict(batch_size=40, drop_last=True), "33 examples give no batch of 40"),
    ],
)
def test_what_cannot_work_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Batches(in_memory(33), **options)


def test_shares_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match=r"`rank` must lie in \[0, world_size=2\), but is 2"):
        Batches(in_memory(33), 4).shard(2, 2)
    with pytest.raises(ValueError, match=r"`batch_size` is 4, too small for 5 processes\. Make it larger"):
        Batches(in_memory(33), 4).shard(0, 5)


def test_skips_beyond_the_epoch_are_refused():
    batches = Batches(in_memory(33), 8)
    assert values(batches, 0, skip=5) == []
    with pytest.raises(ValueError, match="`skip` must lie between 0 and the 5 batches"):
        values(batches, 0, skip=6)
