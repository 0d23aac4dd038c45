"""Tensors that somebody hands to WalkFeatures(...), and walks that are written to."""

import dataclasses
import pickle

import pytest
import torch

import topomask as tm
from helpers.walk_features import assert_same

GRAPH = tm.path_graph(4)


def walks_of_a_path() -> tm.WalkFeatures:
    """Row i visits i after no step and both neighbours after one."""
    return tm.sample_features(GRAPH, num_walks=2, max_length=1)


def changed(name: str, place: int, value: float) -> dict[str, torch.Tensor]:
    tensor = getattr(walks_of_a_path(), name).clone().to(torch.float32 if name == "loads" else torch.int64)
    tensor[place] = value
    return {name: tensor}


# Columns 0 1 | 0 1 2 | 1 2 3 | 2 3.
WRONG = {
    "column too large": (changed("columns", 0, 10**6), r"`columns` must lie in \[0, 4\), but columns\[0\] is 1000000"),
    "negative column": (changed("columns", 3, -5), r"columns\[3\] is -5"),
    "column repeated": (changed("columns", 3, 0), "row 1 has 0 before 0. .*add up the loads"),
    "columns descend": (changed("columns", 3, 3), "row 1 has 3 before 2"),
    "float columns": ({"columns": torch.zeros(10)}, "`columns` must be .* int64 or int32, but has .* torch.float32"),
    "columns as a list": ({"columns": [0] * 10}, "`columns` must be a dense tensor"),
    "two axes": ({"columns": torch.zeros(10, 1, dtype=torch.int64)}, "`columns` must be one-dimensional with dtype"),
    "pointers descend": (changed("row_ptr", 1, 9), "`row_ptr` must not decrease"),
    "pointers end early": (changed("row_ptr", 4, 9), "`row_ptr` must start at 0 and end at 10"),
    "no pointers": ({"row_ptr": torch.zeros(0, dtype=torch.int64)}, "`row_ptr` must have shape"),
    "entries end late": (changed("entry_ptr", 10, 11), "`entry_ptr` must start at 0 and end at 10"),
    "column without entry": (changed("entry_ptr", 1, 0), "columns.0. has no entry"),
    "pointer missing": ({"entry_ptr": torch.tensor([0, 10])}, r"`entry_ptr` must have shape \[11\]"),
    "length too large": (changed("lengths", 0, 2), r"`lengths` must lie in \[0, 2\)"),
    "negative length": (changed("lengths", 0, -1), r"lengths\[0\] is -1"),
    "load missing": ({"loads": torch.ones(9)}, "`loads` must be 10 floating-point numbers"),
    "integer loads": ({"loads": torch.ones(10, dtype=torch.int64)}, "floating-point"),
    "load not finite": (changed("loads", 2, float("nan")), r"loads\[2\] is nan"),
    "heads": ({"num_heads": 3}, "`row_ptr` must have shape"),
    "no heads": ({"num_heads": 0}, "`num_heads` must be an integer of at least 1"),
    "many heads": ({"num_heads": 10**13}, "`num_heads` must be .* at most 4096"),
    "many columns": ({"num_columns": 10**15}, "a graph has at most"),
    "long walks": ({"max_length": 10**13}, "`max_length` must be .* at most 32767"),
    "normalization": ({"normalization": "rows"}, "`normalization` must be one of"),
    "weighting": ({"weighting": ["visits"]}, "`weighting` must be one of"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=list(WRONG))
def test_wrong_tensors_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(walks_of_a_path(), **changes)


def test_repeated_lengths_are_refused():
    given = {"lengths": torch.tensor([0, 0]), "entry_ptr": torch.tensor([0, 2]), "loads": torch.ones(2)}
    given |= {"row_ptr": torch.tensor([0, 1]), "columns": torch.tensor([0])}
    message = r"`lengths` must be unique and ascending .* lengths\[1\] is 0 after 0. .*add up"
    with pytest.raises(ValueError, match=message):
        tm.WalkFeatures(**given, num_heads=1, num_columns=1, max_length=1, normalization="sym")


def test_walks_by_hand_agree_on_all_routes():
    """Rows without walks, a row of all columns, heads that differ, in types that are not those of the sampler."""
    walks = tm.WalkFeatures(
        row_ptr=torch.tensor([0, 0, 3, 4, 5, 5, 5], dtype=torch.int32),
        columns=torch.tensor([0, 1, 2, 0, 2], dtype=torch.int16),
        entry_ptr=torch.tensor([0, 2, 3, 4, 5, 6]),
        lengths=torch.tensor([9, 0, 9, 1, 9, 1, 9, 1, 9, 0, 9, 1])[1::2],
        loads=torch.tensor([1.0, -2.0, 3.0, 4.0, 5.0, 6.0], dtype=torch.float64),
        num_heads=2,
        num_columns=3,
        max_length=1,
        normalization="sym",
    )
    f = torch.tensor([[1.0, 10.0], [1.0, 100.0]])
    expected = torch.tensor([[[0, 0, 0], [1 - 20, 30, 40], [5, 0, 0]], [[0, 0, 600], [0, 0, 0], [0, 0, 0]]]).double()
    assert torch.equal(walks.to_dense(f), expected)
    graph = tm.path_graph(3)
    mask = tm.WalkMask(graph, num_walks=1, max_length=1, num_heads=2, symmetric=False, f=f, walks=walks).double()
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(mask.on().to_dense(), expected)
    torch.testing.assert_close(mask @ x, expected @ x)
    q, k, v = (torch.randn(1, 2, 3, 4, dtype=torch.float64) for _ in range(3))
    wanted = tm.masked_attention(q, k, v, mask, strategy="dense")
    for strategy in ("pairs", "product"):
        torch.testing.assert_close(tm.masked_attention(q, k, v, mask, strategy=strategy), wanted)


def test_right_tensors_make_the_same_walks():
    walks = tm.sample_features(tm.grid_graph(4, 5), num_heads=2)
    assert_same(dataclasses.replace(walks), walks)
    wide = {name: getattr(walks, name).long() for name in ("row_ptr", "columns", "entry_ptr", "lengths")}
    again = dataclasses.replace(walks, **wide)
    assert_same(again, walks)
    assert (again.columns.dtype, again.lengths.dtype) == (torch.int32, torch.uint8)


WRITES = {
    "in place": lambda x, value: x.fill_(value),
    "behind autograd": lambda x, value: x.data.fill_(value),
    "as an array": lambda x, value: x.numpy().fill(value),
}


@pytest.mark.parametrize("make_copy", [lambda x: x, lambda x: pickle.loads(pickle.dumps(x))], ids=["made", "unpickled"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_nobody_can_write_to_walks(write, make_copy):
    walks = make_copy(walks_of_a_path())
    for name in ("row_ptr", "columns", "entry_ptr", "lengths", "loads"):
        write(getattr(walks, name), 127)
        write(walks.state()[name], 127)
    assert_same(walks, walks_of_a_path())
    with pytest.raises(dataclasses.FrozenInstanceError):
        walks.columns = torch.zeros(1)


@pytest.mark.parametrize("num_heads", [1, 2])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_masks_do_not_notice_what_is_written_to_copies(num_heads, given, write):
    graph = tm.path_graph(4)
    walks = tm.sample_features(graph, 4, 2, num_heads=num_heads) if given else None
    mask = tm.WalkMask(graph, num_walks=4, max_length=2, num_heads=num_heads, symmetric=False, seed=0, walks=walks)
    x = torch.randn(1, num_heads, 4, 3)
    expected = tm.masked_attention(x, x, x, mask)
    write((mask.walks if walks is None else walks).columns, 10**6)
    assert torch.equal(tm.masked_attention(x, x, x, mask), expected)
    assert torch.equal(tm.masked_attention(x, x, x, mask.on(graph, walks=mask.walks)), expected)


def test_own_tensors_may_be_written_to_afterwards():
    walks = walks_of_a_path()
    columns = walks.columns.clone()
    other = dataclasses.replace(walks, columns=columns)
    columns.fill_(10**6)
    assert_same(other, walks)


def test_walks_made_in_inference_mode_can_be_trained_on():
    with torch.inference_mode():
        walks = dataclasses.replace(walks_of_a_path(), loads=torch.ones(10))
    f = torch.ones(2, requires_grad=True)
    walks.values(f).sum().backward()
    assert f.grad.tolist() == [4.0, 6.0]
