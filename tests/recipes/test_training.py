import sys

import pytest

from helpers.small_runs import SMALL
from topomask.recipes import training
from topomask.recipes.images import digits
from topomask.support.config import apply_overrides


def test_pictures_are_drawn_and_what_comes_next_is_said(tmp_path, capsys):
    experiment = apply_overrides(digits(), [*SMALL["digits"], "train.steps=1", "model.attention=linear"])
    result = training.train_recipe(experiment, tmp_path)
    out = capsys.readouterr().out
    # Without a mask there is no modulation to draw.
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["accuracy.png", "loss.png"]
    assert f"accuracy {result.metrics['accuracy']:.4g}" in out
    assert f"Next: topomask eval {tmp_path}; topomask predict {tmp_path} FILE" in out


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_first_process_draws_and_speaks(tmp_path, monkeypatch, capsys, rank):
    monkeypatch.setattr(training, "join_processes", lambda device: type("Processes", (), {"is_first": rank == 0}))
    monkeypatch.setattr(training, "plot_run", lambda *_: [])
    experiment = apply_overrides(digits(), [*SMALL["digits"], "train.steps=1", "model.attention=linear"])
    training.train_recipe(experiment, tmp_path)
    assert bool(capsys.readouterr().out) == (rank == 0)


def test_a_missing_matplotlib_is_said_before_the_training(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"need matplotlib.*topomask\[plot\]"):
        training.train_recipe(digits(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
