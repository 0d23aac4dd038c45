from dataclasses import replace

import torch

import topomask as tm
from topomask.recipes import demo, demo_training


def test_the_demo_writes_its_pictures_and_a_report(tmp_path, monkeypatch, capsys):
    """The same tour on a smaller grid, with four steps of training."""
    whole = demo_training.demo_experiment()
    short = replace(whole, train=replace(whole.train, epochs=None, steps=4, eval_every=2, progress=False))
    monkeypatch.setattr(demo_training, "demo_experiment", lambda: short)
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
