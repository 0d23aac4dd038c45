import json

import pytest
import torch

from topomask.data import MissingDataError, fair_splits, stratified_folds
from topomask.data.tu import TU_SETS, TUEntry

NAME = "TINY"
FOLDS = [{"train": [2, 0], "validation": [3], "test": [1]}, {"train": [1], "validation": [2], "test": [3, 0]}]
AS_PUBLISHED = [
    {"test": fold["test"], "model_selection": [{key: fold[key] for key in ("train", "validation")}]} for fold in FOLDS
]


@pytest.fixture
def file(tmp_path):
    (tmp_path / "splits").mkdir()
    return tmp_path / "splits" / f"{NAME}.json"


@pytest.mark.parametrize("layout", [FOLDS, AS_PUBLISHED], ids=["flat", "published"])
@pytest.mark.parametrize("num_graphs", [4, None])
def test_folds_are_read_in_both_layouts(file, layout, num_graphs):
    file.write_text(json.dumps(layout))
    found = fair_splits(NAME, num_graphs, file.parent.parent)
    assert [fold.train.tolist() for fold in found] == [[2, 0], [1]]
    assert (found[1].val.tolist(), found[1].test.tolist()) == ([2], [3, 0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"tra', r"TINY.json is not JSON"),
        ("3", r"TINY.json must be a list of folds, \[{.*}, ...\], with indices of graphs from 0, but has none"),
        ("[]", r"must be a list of folds, .* but has none"),
        ("[3]", r"Fold 0 of .*TINY.json must list graphs for train, but has null"),
        ('[{"train": [1]}]', r"Fold 0 of .*TINY.json must list graphs for validation, but has null"),
        ('[{"test": [0], "model_selection": []}]', r"must list graphs for train, but has null"),
        ('[{"train": [0, 1], "validation": [], "test": [2, 3]}]', r"must list graphs for validation, but has \[\]"),
        ('[{"train": [0, 1.0], "validation": [2], "test": [3]}]', r"must list graphs for train, but has \[0, 1.0\]"),
        ('[{"train": 0, "validation": [2], "test": [3]}]', r"must list graphs for train, but has 0"),
        ('[{"train": [1, 2], "validation": [3], "test": [4]}]', r"indices of graphs from 0 to 3, but has 4"),
        ('[{"train": [0, 1], "validation": [2], "test": [1000000000000000000000]}]', r"but has 1000000000000000000000"),
        ('[{"train": [0, 1], "validation": [-1], "test": [3]}]', r"indices of graphs from 0 to 3, but has -1"),
        (
            '[{"train": [0, 1], "validation": [3], "test": [2, 3]}]',
            r"must have each graph once, but has graph 3 2 times",
        ),
        ('[{"train": [0, 1], "validation": [2], "test": [1]}]', r"must have each graph once, but has graph 1 2 times"),
        ('[{"train": [0], "validation": [2], "test": [3]}]', r"must have each of the 4 graphs once, but lacks graph 1"),
        ('[{"train": [0], "validation": [1], "test": [2]}]', r"must have each of the 4 graphs once, but lacks graph 3"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(file, text, message):
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        fair_splits(NAME, 4, file.parent.parent)


def test_folds_that_test_on_a_graph_twice_are_no_cross_validation(file, monkeypatch):
    file.write_text(json.dumps(FOLDS[:1] * 3))
    assert len(fair_splits(NAME, 4, file.parent.parent)) == 3, "splits of one's own may overlap"
    monkeypatch.setitem(TU_SETS, NAME, TUEntry(4, 2))
    with pytest.raises(ValueError, match=r"must test on each graph once, but 3 folds test on graph \d"):
        fair_splits(NAME, root=file.parent.parent)


def test_missing_folds_are_named(tmp_path):
    with pytest.raises(MissingDataError, match=r"'splits of DD' needs DD.json"):
        fair_splits("DD", root=tmp_path)


@pytest.mark.parametrize(
    "sizes", [(60, 30, 12), (5,) * 100, (9,) * 30, (9,) * 27 + (8,) * 3, (15,) * 10, (1, 200)], ids=str
)
@pytest.mark.parametrize("num_folds", [2, 10])
def test_stratified_folds_test_every_graph_once_with_classes_in_equal_shares(sizes, num_folds):
    counts = torch.tensor(sizes)
    labels = torch.arange(len(sizes)).repeat_interleave(counts)
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]
    folds = stratified_folds(labels, num_folds, seed=3)
    assert len(folds) == num_folds
    assert torch.equal(torch.cat([fold.test for fold in folds]).sort().values, torch.arange(len(labels)))
    tested = [len(fold.test) for fold in folds]
    assert max(tested) - min(tested) <= 1
    for fold in folds:
        assert torch.equal(torch.cat(fold).sort().values, torch.arange(len(labels)))
        assert len(fold.val) == -(-(len(labels) - len(fold.test)) // 10)
        by_class = [torch.bincount(labels[part], minlength=len(sizes)) for part in fold]
        assert (by_class[2] - counts / num_folds).abs().max() < 1
        assert (by_class[1] - (counts - by_class[2]) / 10).abs().max() < 1


def test_stratified_folds_depend_on_the_seed_only():
    labels = torch.arange(102) % 3
    first, again, other = (stratified_folds(labels, seed=seed) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for one, two in zip(first, again, strict=True) for a, b in zip(one, two, strict=True))
    assert not torch.equal(other[1].test, first[1].test)


def test_every_fold_draws_a_hold_out_of_its_own():
    labels = torch.arange(1000) % 2
    held_out = torch.zeros(1000, dtype=torch.long)
    for fold in stratified_folds(labels):
        held_out[fold.val] += 1
    # With independent draws, a graph is held out in none of nine folds with probability 0.9^9 = 0.39.
    assert abs(int((held_out == 0).sum()) - 387) < 80


def test_sets_that_are_too_small_for_folds_are_refused():
    with pytest.raises(ValueError, match="`num_folds` must lie between 2 and the 102 graphs, but is 103"):
        stratified_folds(torch.arange(102) % 3, 103)
    with pytest.raises(ValueError, match="2 graphs are too few for 2 folds with a hold-out each: a part is empty"):
        stratified_folds(torch.arange(2), 2)
    with pytest.raises(ValueError, match=r"`labels` must be integers of shape \[G\], but are torch.float32"):
        stratified_folds(torch.rand(12))


@pytest.mark.parametrize("text", ["[" * 100_000, '[{"train": ' + "[" * 900 + "]" * 900 + "}]", "\0", ""])
def test_folds_without_end_are_refused(tmp_path, text):
    (tmp_path / "splits").mkdir()
    (tmp_path / "splits" / "TINY.json").write_text(text)
    with pytest.raises(ValueError, match=r"TINY.json (is not JSON|must list graphs for train)") as found:
        fair_splits("TINY", 4, tmp_path)
    assert len(str(found.value)) < 400


def test_folds_have_numbers_that_tensors_hold(tmp_path):
    (tmp_path / "splits").mkdir()
    (tmp_path / "splits" / "TINY.json").write_text(f'[{{"train": [0], "validation": [1], "test": [{10**30}]}}]')
    with pytest.raises(ValueError, match=f"but has {10**30}"):
        fair_splits("TINY", root=tmp_path)
