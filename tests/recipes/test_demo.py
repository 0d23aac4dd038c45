import torch

import topomask as tm
from topomask.recipes import demo


def test_the_demo_writes_its_pictures(tmp_path, monkeypatch, capsys):
    """The same tour on a smaller grid."""
    monkeypatch.setattr(demo, "TOKENS", (32, 64))
    demo.main(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attention.png", "error.png", "rows.png"]
    assert "relative error of the masked output" in capsys.readouterr().out


def test_linear_attention_of_the_demo_is_attention_under_a_mask_of_ones():
    q, k, v = torch.randn(3, 1, 1, 9, 4)
    mask = tm.DenseMask(torch.ones(9, 9))
    torch.testing.assert_close(demo._linear_attention(q, k, v), tm.masked_attention(q, k, v, mask))
