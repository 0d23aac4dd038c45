import json

import pytest
import torch

from topomask.data import MissingDataError, fair_splits, stratified_folds

NAME = "TINY"


def test_folds_are_read_and_verified(tmp_path):
    place = tmp_path / "splits"
    place.mkdir()
    folds = [{"train": [2, 0], "validation": [3], "test": [1]}, {"train": [1], "validation": [2], "test": [3, 0]}]
    file = place / f"{NAME}.json"
    file.write_text(json.dumps(folds))
    found = fair_splits(NAME, 4, tmp_path)
    assert [fold.train.tolist() for fold in found] == [[2, 0], [1]]
    assert (found[1].val.tolist(), found[1].test.tolist()) == ([2], [3, 0])
    with pytest.raises(ValueError, match=r"Fold 0 of .*TINY.json does not have each of the 5 graphs once"):
        fair_splits(NAME, 5, tmp_path)
    for text in ('[{"train": [1]}]', '[{"tra', "3"):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"TINY.json is no list of folds"):
            fair_splits(NAME, 4, tmp_path)
    with pytest.raises(MissingDataError, match=r"'splits of DD' needs DD.json"):
        fair_splits("DD", root=tmp_path)


@pytest.mark.parametrize("num_folds", [2, 10])
def test_stratified_folds_test_every_graph_once_with_classes_in_equal_shares(num_folds):
    labels = torch.tensor([0] * 60 + [1] * 30 + [2] * 12)[
        torch.randperm(102, generator=torch.Generator().manual_seed(0))
    ]
    folds = stratified_folds(labels, num_folds, seed=3)
    assert len(folds) == num_folds
    assert torch.equal(torch.cat([fold.test for fold in folds]).sort().values, torch.arange(102))
    for fold in folds:
        assert torch.equal(torch.cat(fold).sort().values, torch.arange(102))
        for part, share in zip(
            fold, (0.9 * (1 - 1 / num_folds), 0.1 * (1 - 1 / num_folds), 1 / num_folds), strict=True
        ):
            counts = torch.bincount(labels[part], minlength=3)
            assert (counts - share * torch.tensor([60, 30, 12])).abs().max() <= 1.5
    again, other = (stratified_folds(labels, num_folds, seed=seed) for seed in (3, 4))
    assert torch.equal(again[1].val, folds[1].val)
    assert not torch.equal(other[1].test.sort().values, folds[1].test.sort().values)
    with pytest.raises(ValueError, match="`num_folds` must lie between 2 and the 102 graphs, but is 103"):
        stratified_folds(labels, 103)
    with pytest.raises(ValueError, match="12 graphs are too few for 10 folds, each with a hold-out: a part is empty"):
        stratified_folds(torch.arange(12) % 3)
