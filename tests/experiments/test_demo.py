from dataclasses import replace

import pytest
import torch

import topomask as tm
from experiments import demo, demo_training

_WHOLE = demo_training.demo_experiment()


def short_experiment():
    return replace(_WHOLE, train=replace(_WHOLE.train, epochs=None, steps=4, eval_every=2, progress=False))


def test_the_demo_writes_its_pictures_and_a_report(tmp_path, monkeypatch, capsys):
    """The same tour on a smaller grid, with four steps of training."""
    monkeypatch.setattr(demo_training, "demo_experiment", short_experiment)
    monkeypatch.setattr(demo, "TOKENS", (32, 64))
    demo.main(tmp_path)
    names = ["attention.png", "error.png", "report.html", "rows.png", "training"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    out = capsys.readouterr().out
    assert "Relative error of the masked output" in out
    assert "linear attention, masked by walks" in out
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png;base64") == 5
    assert "http" not in page
    # Again into the same folder: what was there is replaced.
    demo_training.show_training(tmp_path)


def test_linear_attention_of_the_demo_is_attention_under_a_mask_of_ones():
    q, k, v = torch.randn(3, 1, 1, 9, 4)
    mask = tm.DenseMask(torch.ones(9, 9))
    torch.testing.assert_close(demo._linear_attention(q, k, v), tm.masked_attention(q, k, v, mask))


def test_only_runs_of_an_earlier_tour_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(demo_training, "demo_experiment", short_experiment)
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "notes.txt").write_text("mine")
    demo_training.show_training(tmp_path)
    demo_training.show_training(tmp_path)
    assert (tmp_path / "training" / "notes.txt").read_text() == "mine"
    (tmp_path / "training" / "grf" / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match="is not a run folder"):
        demo_training.show_training(tmp_path)
