import pytest
import torch
from sklearn.datasets import load_digits

from topomask.data.digits import digits


def test_all_digits_are_there_once_and_can_be_undone():
    parts = [digits(split, val_fraction=0.1) for split in ("train", "val", "test")]
    assert sum(len(part) for part in parts) == 1797
    pixels = torch.cat([part.inputs for part in parts]).double() * 16 / 255
    original = torch.from_numpy(load_digits().images)
    assert torch.equal(pixels.round().sum(dim=(0, 1)), original.sum(dim=0))
    found = {tuple(row) for row in pixels.round().flatten(1).long().tolist()}
    assert found == {tuple(row) for row in original.flatten(1).long().tolist()}


def test_the_split_is_stratified_fixed_and_depends_on_its_seed():
    test = digits("test")
    assert torch.bincount(test.labels).tolist() == [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]
    assert torch.equal(test.inputs, digits("test").inputs)
    assert torch.equal(test.inputs, digits("test", val_fraction=0.2).inputs)
    assert not torch.equal(test.inputs, digits("test", split_seed=1).inputs)


def test_labels_belong_to_their_pictures():
    found = load_digits()
    label_of = {tuple(row): label for row, label in zip(found.data.astype(int).tolist(), found.target, strict=True)}
    part = digits("train", limit=50)
    for image, label in part:
        assert label_of[tuple((image.double() * 16 / 255).round().long().flatten().tolist())] == label


def test_mean_and_std_are_those_of_the_pixels():
    pixels = torch.cat([digits(split).inputs for split in ("train", "test")]).double() / 255
    assert digits().mean[0] == pytest.approx(float(pixels.mean()), abs=1e-4)
    assert digits().std[0] == pytest.approx(float(pixels.std()), abs=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(split="training"), "must be one of train, val, test"),
        (dict(split="val"), "that of 'val' must be above 0"),
        (dict(test_fraction=0.7, val_fraction=0.4), "must lie in"),
        (dict(limit=2000), "`limit` must lie between 1 and the 1438"),
    ],
)
def test_what_cannot_be_split_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        digits(**options)
