from dataclasses import replace

import pytest
import torch
from PIL import Image
from torch import nn

from topomask.recipes.images import digits
from topomask.recipes.predictions import predict
from topomask.recipes.registry import TrainedRun


class Centre(nn.Module):
    """Gives the mean of the inputs as the logit of class 3."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(x)
        return x.mean() * nn.functional.one_hot(torch.tensor([3]), 10)


@pytest.fixture
def run(tmp_path):
    return TrainedRun(digits().fitted(), Centre(), tmp_path, 0)


def test_pictures_are_seen_as_in_training(run, tmp_path):
    """Grey, 8 x 8, and normalised by the facts of the run, whatever the file is."""
    Image.new("RGB", (30, 20), (255, 255, 255)).save(tmp_path / "white.png")
    (found,) = predict(run, [tmp_path / "white.png"], top=1)
    facts = run.experiment.facts
    white = (1.0 - facts.mean[0]) / facts.std[0]
    (seen,) = run.model.seen
    assert seen.shape == (1, 1, 8, 8)
    torch.testing.assert_close(seen, torch.full((1, 1, 8, 8), white))
    chance = torch.softmax(white * torch.eye(10)[3], dim=0)[3].item()
    assert found.facts["classes"] == [{"name": "3", "probability": pytest.approx(chance)}]
    assert found.text == f"{tmp_path / 'white.png'}: 3 {chance:.1%}"


def test_nothing_is_drawn_even_where_training_draws(run, tmp_path):
    Image.effect_noise((8, 8), 80).save(tmp_path / "noise.png")
    shaken = replace(run.experiment, data=replace(run.experiment.data, flip=True, shift=3))
    list(predict(replace(run, experiment=shaken), [tmp_path / "noise.png"] * 5))
    assert all(torch.equal(seen, run.model.seen[0]) for seen in run.model.seen)


def test_files_are_read_one_by_one(run, tmp_path):
    """What comes before a file that is not there is still said."""
    Image.new("L", (8, 8)).save(tmp_path / "good.png")
    lines = predict(run, [tmp_path / "good.png", tmp_path / "gone.png"])
    assert next(lines).facts["file"] == str(tmp_path / "good.png")
    with pytest.raises(FileNotFoundError, match=r"gone\.png"):
        next(lines)
