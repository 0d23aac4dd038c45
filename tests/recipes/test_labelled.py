from dataclasses import replace

import pytest
import torch

from helpers.data_files import write_mnist
from topomask.data import MissingDataError
from topomask.models import VisionTransformerConfig
from topomask.recipes.experiment import fill
from topomask.recipes.images import digits, mnist
from topomask.recipes.labelled import LabelledData
from topomask.recipes.videos import moving_digits


def test_what_is_not_said_is_taken_from_the_data():
    found = fill(VisionTransformerConfig(dim=8), image_size=28, in_channels=1, num_classes=10)
    assert found == VisionTransformerConfig(dim=8, image_size=28, in_channels=1, num_classes=10)


@pytest.mark.parametrize("given", [8, (8, 8)])
def test_what_agrees_with_the_data_may_be_said(given):
    assert fill(VisionTransformerConfig(image_size=given), image_size=8).image_size == 8
    assert fill(VisionTransformerConfig(image_size=(8, 6)), image_size=(8, 6)).image_size == (8, 6)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"image_size": 9}, {"image_size": 8}),
        ({"image_size": 8}, {"image_size": (8, 6)}),
        ({"num_classes": 3}, {"num_classes": 10}),
    ],
)
def test_what_contradicts_the_data_is_refused(given, found):
    name = next(iter(given))
    with pytest.raises(ValueError, match=rf"`model.{name}` is .*, but the data has .*\. Leave it out"):
        fill(VisionTransformerConfig(**given), **found)


def test_only_training_examples_are_limited_and_augmented():
    experiment = replace(digits(), data=LabelledData("digits", limit=50, flip=True, shift=2, batch_size=20)).fitted()
    train, test = experiment.batches("train", training=True), experiment.batches("test")
    assert (len(train.dataset), len(test.dataset)) == (50, 359)
    (first, *_), (again, *_) = list(train.epoch(0)), list(train.epoch(1))
    assert not torch.equal(first[0], again[0])
    (first, *_), (again, *_) = list(test.epoch(0)), list(test.epoch(1))
    assert torch.equal(first[0], again[0])
    plain = experiment.batches("train")
    (first, *_), (again, *_) = list(plain.epoch(0)), list(plain.epoch(1))
    assert torch.equal(first[0], again[0]), "training examples are evaluated as they are"


def test_other_classes_than_in_training_are_refused():
    experiment = digits().fitted()
    other = replace(experiment, facts=replace(experiment.facts, classes=("a", "b")))
    with pytest.raises(
        ValueError, match=r"classes of 'test' must be those of the model, a, b \(2\), but are 0, 1, 2, 3, 4, ... \(10\)"
    ):
        other.batches("test")


def test_inputs_are_normalised_by_the_facts():
    experiment = digits().fitted()
    inputs = torch.cat([batch[0] for batch in experiment.batches("train").epoch(0)])
    assert inputs.mean().item() == pytest.approx(0.0, abs=0.05)
    assert inputs.std().item() == pytest.approx(1.0, abs=0.05)


def test_a_validation_set_replaces_the_test_set():
    data = LabelledData("digits", val_fraction=0.25)
    assert (LabelledData("digits").held_out, data.held_out) == ("test", "val")
    assert len(data.load("val")) < len(data.load("train"))


def test_the_test_set_of_generated_videos_stays_whole():
    data = LabelledData("moving-digits", num_videos=10, size=16, num_frames=2)
    assert (len(data.load("train")), len(data.load("test"))) == (10, 500)


@pytest.mark.parametrize(
    ("experiment", "data", "message"),
    [
        (digits(), LabelledData("moving-digits", num_videos=2, size=16), "contains videos. Use a recipe for videos"),
        (moving_digits(), LabelledData("digits"), "contains pictures. Use a recipe for pictures"),
        (digits(), LabelledData("particles"), "'particles', which has no classes"),
        (digits(), LabelledData("digits", num_frames=3), "data set 'digits' has no option `num_frames`"),
        (digits(), LabelledData("digitz"), r"There is no data set 'digitz'\. Did you mean digits\?"),
    ],
)
def test_data_that_does_not_suit_is_refused(experiment, data, message):
    with pytest.raises(ValueError, match=message):
        replace(experiment, data=data).fitted()


def test_data_is_kept_in_memory_but_not_beyond_another_root(tmp_path, monkeypatch):
    write_mnist(tmp_path / "sets" / "mnist")
    data = replace(mnist().data, limit=10)
    monkeypatch.setenv("TOPOMASK_DATA", str(tmp_path / "sets"))
    assert data.load("train") is data.load("train")
    monkeypatch.setenv("TOPOMASK_DATA", str(tmp_path / "empty"))
    with pytest.raises(MissingDataError, match="empty"):
        data.load("train")
