"""Ragged arrays, and checks of index tensors, each once for as long as nobody writes to them."""

import gc

import pytest
import torch

import topomask as tm
from topomask.ops import segments
from topomask.ops.sparse_product import Pattern, make_pattern, spmm


def small_pattern() -> Pattern:
    """[[1, 1, 0], [0, 0, 1]]."""
    return make_pattern(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 2]), 3)


def test_a_check_runs_once_until_a_tensor_moves():
    calls, tensor = [], torch.arange(3)

    def check(_: torch.Tensor) -> None:
        calls.append(1)

    for _ in range(3):
        segments.check_once(check, [tensor])
    assert len(calls) == 1
    # Tensors that go to another process move to memory that both see.
    tensor.share_memory_()
    segments.check_once(check, [tensor])
    assert len(calls) == 2
    tensor[0] = 5
    with pytest.raises(ValueError, match="was written to"):
        segments.check_once(check, [tensor])


def test_checks_are_forgotten_with_their_tensors():
    gc.collect()
    before = len(segments._checked)
    pattern = small_pattern()
    assert len(segments._checked) > before
    del pattern
    gc.collect()
    assert len(segments._checked) == before


@pytest.mark.parametrize("place", range(5), ids=Pattern._fields)
@pytest.mark.parametrize("value", [10**6, -1, 0])
def test_patterns_that_were_written_to_are_refused(place, value):
    pattern = small_pattern()
    spmm(pattern, torch.ones(3), torch.ones(3, 2))
    pattern[place].fill_(value)
    for transpose, size in ((False, 3), (True, 2)):
        with pytest.raises(ValueError, match="was written to"):
            spmm(pattern, torch.ones(3), torch.ones(size, 2), transpose=transpose)


WRONG = {
    "columns": (torch.tensor([0, 1, 3]), r"`columns` must lie in \[0, 3\), but columns\[2\] is 3"),
    "row_ptr": (torch.tensor([0, 4, 3]), r"row_ptr\[1\] is 4 and row_ptr\[2\] is 3"),
    "column_ptr": (torch.tensor([0, 1, 1, 3]), "do not describe the same entries"),
    "rows": (torch.tensor([1, 0, 0]), "do not describe the same entries"),
    "order": (torch.tensor([0, 0, 0]), "do not describe the same entries"),
}


@pytest.mark.parametrize("name", WRONG)
def test_patterns_by_hand_are_checked(name):
    tensor, message = WRONG[name]
    pattern = small_pattern()._replace(**{name: tensor})
    with pytest.raises(ValueError, match=message):
        spmm(pattern, torch.ones(3), torch.ones(3, 2))
    with pytest.raises(ValueError, match=message):
        tm.nn.SparseRows(pattern, torch.ones(3))


def test_values_must_fit_the_pattern():
    with pytest.raises(ValueError, match=r"`values` must have shape \[3\]"):
        tm.nn.SparseRows(small_pattern(), torch.ones(4))


def test_repeated_entries_of_sparse_rows_add_up():
    rows = tm.nn.SparseRows(make_pattern(torch.tensor([0, 2]), torch.tensor([1, 1]), 2), torch.tensor([2.0, 3.0]))
    assert rows.to_dense().tolist() == [[0.0, 5.0]]
    assert (rows @ torch.eye(2)).tolist() == [[0.0, 5.0]]


def test_compiled_code_notices_what_was_written():
    pattern = small_pattern()
    multiply = torch.compile(lambda x: spmm(pattern, torch.ones(3), x), fullgraph=True, backend="aot_eager")
    assert multiply(torch.ones(3, 2)).tolist() == [[2.0, 2.0], [1.0, 1.0]]
    pattern.columns.fill_(10**6)
    with pytest.raises(ValueError, match="was written to"):
        multiply(torch.ones(3, 2))


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
