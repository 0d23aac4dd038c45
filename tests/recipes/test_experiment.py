import sys
from dataclasses import dataclass

import pytest
import torch

from helpers import training
from helpers.small_runs import SMALL
from helpers.training import make_data
from topomask.recipes import experiment as experiments
from topomask.recipes.experiment import Experiment
from topomask.recipes.images import digits
from topomask.support.config import apply_overrides
from topomask.train import Classification, evaluate, find_checkpoint, load_weights, read_checkpoint


@dataclass(frozen=True, kw_only=True)
class TinyExperiment(Experiment):
    """The small model of the tests, with an option that the data decides."""

    classes: int | None = None

    @property
    def held_out(self):
        return "test"

    def fitted(self):
        return TinyExperiment(recipe=self.recipe, train=self.train, start=self.start, classes=training.CLASSES)

    def build(self):
        assert self.classes == training.CLASSES, "a model is built of what is fitted"
        return training.Tiny()

    def batches(self, split, training=False):
        return make_data(shuffle=training, seed=int(split == "test"))

    def task(self):
        return Classification()


def weights(folder):
    return read_checkpoint(find_checkpoint(folder)).weights


def test_what_is_fitted_is_run_and_recorded(tmp_path):
    result = TinyExperiment(recipe="tiny", train=training.CONFIG).run(tmp_path)
    assert result.step == 28
    assert "accuracy" in result.metrics
    assert read_checkpoint(find_checkpoint(tmp_path)).info["config"]["classes"] == training.CLASSES


def test_the_seed_decides_the_numbers(tmp_path):
    one = TinyExperiment(recipe="tiny", train=training.CONFIG)
    results = [one.with_seed(seed).run(tmp_path / str(place)) for place, seed in enumerate((0, 0, 1))]
    assert results[0].metrics == results[1].metrics != results[2].metrics


def test_a_run_is_resumed(tmp_path):
    experiment = TinyExperiment(recipe="tiny", train=training.CONFIG)
    before = experiment.run(tmp_path)
    with pytest.raises(FileExistsError, match="already contains a run"):
        experiment.run(tmp_path)
    (tmp_path / "checkpoints" / "step-000000028.safetensors").unlink()
    after = experiment.run(tmp_path, resume=True)
    assert after.metrics == before.metrics


def test_a_start_gives_all_weights_but_those_of_the_head(tmp_path):
    first = TinyExperiment(recipe="tiny", train=training.CONFIG)
    first.run(tmp_path / "first")
    start = find_checkpoint(tmp_path / "first")
    second = TinyExperiment(recipe="tiny", train=training.CONFIG, start=start).fitted()
    torch.manual_seed(1)
    model = second._start_model()
    for name, value in weights(tmp_path / "first").items():
        assert torch.equal(model.state_dict()[name], value) != name.startswith("head."), name


def test_nothing_is_chosen_by_a_test_set(tmp_path):
    experiment = TinyExperiment(recipe="tiny", train=training.CONFIG)
    assert not experiment.keeps_best
    assert experiment.measure(experiment.run(tmp_path)) == pytest.approx(experiment.run(tmp_path, resume=True).metrics)


@dataclass(frozen=True, kw_only=True)
class Validated(TinyExperiment):
    """The same, with weights chosen on validation examples and measured on test examples."""

    final_split = "test"

    @property
    def held_out(self):
        return "val"

    def fitted(self):
        return Validated(recipe=self.recipe, train=self.train, start=self.start, classes=training.CLASSES)


def test_the_best_weights_are_measured_on_the_split_that_was_kept(tmp_path):
    experiment = Validated(recipe="tiny", train=training.CONFIG)
    assert experiment.keeps_best
    result = experiment.run(tmp_path)
    found = experiment.measure(result)
    assert found["val_accuracy"] == result.best["accuracy"]
    model = training.Tiny()
    load_weights(model, find_checkpoint(tmp_path))
    assert found["accuracy"] == evaluate(model, experiment.batches("test"), Classification())["accuracy"]


def test_pictures_are_drawn_and_what_comes_next_is_said(tmp_path, capsys):
    experiment = apply_overrides(digits(), [*SMALL["digits"], "--train.steps=1", "--model.attention=linear"])
    result = experiments.train_recipe(experiment, tmp_path)
    out = capsys.readouterr().out
    # Without a mask there is no modulation to draw.
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["accuracy.png", "loss.png"]
    assert f"accuracy {result.metrics['accuracy']:.4g}" in out
    assert f"Next: topomask eval {tmp_path}; topomask predict {tmp_path} FILE" in out


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_first_process_draws_and_speaks(tmp_path, monkeypatch, capsys, rank):
    monkeypatch.setattr(experiments, "join_processes", lambda device: type("Processes", (), {"is_first": rank == 0}))
    monkeypatch.setattr(experiments, "plot_run", lambda *_: [])
    experiment = apply_overrides(digits(), [*SMALL["digits"], "--train.steps=1", "--model.attention=linear"])
    experiments.train_recipe(experiment, tmp_path)
    assert bool(capsys.readouterr().out) == (rank == 0)


def test_a_missing_matplotlib_is_said_before_the_training(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs matplotlib.*topomask\[plot\]"):
        experiments.train_recipe(digits(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
