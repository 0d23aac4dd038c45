import torch

from topomask.ops import segments


def test_pieces():
    counts = torch.tensor([2, 0, 3])
    ptr = segments.pointers(counts)
    assert ptr.tolist() == [0, 2, 2, 5]
    assert segments.index(ptr).tolist() == [0, 0, 2, 2, 2]
    assert segments.ranges(torch.tensor([10, 20, 30]), counts).tolist() == [10, 11, 30, 31, 32]
    values = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    assert segments.cumulative_sum(values, ptr).tolist() == [1.0, 3.0, 3.0, 7.0, 12.0]
    assert segments.last(values, ptr).tolist() == [2.0, 0.0, 5.0]
    empty = torch.zeros(0)
    assert segments.cumulative_sum(empty, torch.zeros(4, dtype=torch.int64)).tolist() == []
    assert segments.last(empty, torch.zeros(4, dtype=torch.int64)).tolist() == [0.0, 0.0, 0.0]


def test_a_segment_depends_on_its_own_values_alone():
    """To the last bit, wherever it stands: partitions of a graph rely on it."""
    generator = torch.Generator().manual_seed(0)
    segment = torch.rand(1000, generator=generator, dtype=torch.float64)
    alone = segments.cumulative_sum(segment, torch.tensor([0, 1000]))
    before = torch.rand(777, generator=generator, dtype=torch.float64) * 1e9
    together = segments.cumulative_sum(torch.cat([before, segment]), torch.tensor([0, 777, 1777]))
    assert torch.equal(together[777:], alone)
    torch.testing.assert_close(alone, segment.cumsum(0), rtol=1e-13, atol=0)
