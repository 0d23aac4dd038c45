import base64
import re

import numpy as np
import pytest
import torch

import topomask as tm
from topomask.masks.walking import WalkOperator
from topomask.pictures import mask_pictures
from topomask.pictures.mask_pictures import draw_mask

HEADS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF", ".html": b"<!DOCTYPE html>"}


@pytest.mark.parametrize("suffix", HEADS)
def test_every_format(tmp_path, suffix):
    path = tmp_path / f"mask{suffix}"
    draw_mask("walk", "grid:4x4", path, nodes=[0, 5], settings={"num_walks": 5})
    assert path.read_bytes().startswith(HEADS[suffix])
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_report_holds_its_pictures_and_facts(tmp_path):
    path = tmp_path / "mask.html"
    facts = draw_mask("power-series", "cycle:6", path, nodes=[1, 2])
    text = path.read_text()
    pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', text)
    assert len(pictures) == 4
    assert all(base64.b64decode(picture).startswith(b"\x89PNG") for picture in pictures)
    assert "http" not in text, "nothing is fetched from elsewhere"
    for name, value in facts:
        assert name in text
        assert value.replace("<", "&lt;").replace("'", "&#x27;") in text


def test_names_of_files_do_not_become_markup(tmp_path):
    graph = tmp_path / "a<b>&.txt"
    graph.write_text("0 1\n")
    draw_mask("walk", str(graph), tmp_path / "mask.html")
    text = (tmp_path / "mask.html").read_text()
    assert "a&lt;b&gt;&amp;.txt" in text
    assert "a<b>" not in text


def test_facts_are_those_of_the_mask(tmp_path):
    settings = {"coefficients": [1.0, 0.5], "normalization": "none"}
    facts = dict(draw_mask("power-series", "cycle:8", tmp_path / "mask.png", settings=settings))
    assert facts["nodes N"] == facts["edges E"] == "8"
    assert facts["row sums"].startswith("2 to 2, mean 2, norm 5.657")
    assert facts["nonzero entries"] == "24 of 64 (37.5%)"
    assert facts["smallest, largest entry"] == "0, 1"
    assert facts["eigenvalues"].startswith("0 to 2") or re.match(r"-?\d\.?\d*e-1\d to 2", facts["eigenvalues"])
    assert facts["learnable numbers"] == "2"
    assert facts["linear attention, width 64"].startswith("dense: lowest estimated time")


def test_large_graphs_show_rows_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(WalkOperator, "to_dense", lambda operator: pytest.fail("the whole mask is formed"))
    facts = dict(
        draw_mask("walk", "grid:50x50", tmp_path / "mask.png", settings={"symmetric": False, "num_heads": 2}, head=1)
    )
    assert "up to 2,000 nodes" in facts["left out"]
    assert facts["nonzero entries"].startswith("about")
    with pytest.raises(ValueError, match=r"'spectrum' needs all 2,500 x 2,500 entries.*up to 2,000 nodes"):
        draw_mask("walk", "grid:50x50", tmp_path / "other.png", show=["rows", "spectrum"])


def test_only_what_is_asked_for_is_drawn(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(mask_pictures, "_draw", lambda figure, axes, portrait, kind, index: drawn.append((kind, index)))
    draw_mask("walk", "cycle:5", tmp_path / "mask.png", nodes=[3, 1], show=["spectrum", "rows"])
    assert drawn == [("rows", 0), ("rows", 1), ("spectrum", 0)]
    drawn.clear()
    draw_mask("walk", "cycle:5", tmp_path / "mask.png", show=["heat"])
    assert drawn == [("heat", 0)]


def test_the_spectrum_is_that_of_the_mask(tmp_path, monkeypatch):
    """Eigenvalues of a symmetric mask; of another, those of its symmetric part, and singular values."""
    lines = []
    draw = mask_pictures._draw_spectrum

    def spy(axes, portrait):
        draw(axes, portrait)
        lines.append((portrait.dense, {line.get_label(): line.get_ydata() for line in axes.lines}))

    monkeypatch.setattr(mask_pictures, "_draw_spectrum", spy)
    draw_mask("power-series", "path:5", tmp_path / "mask.png", show=["spectrum"])
    draw_mask("walk", "path:5", tmp_path / "mask.png", show=["spectrum"], settings={"num_walks": 2})
    (symmetric, first), (other, second) = lines
    np.testing.assert_allclose(first["eigenvalues"], np.sort(np.linalg.eigvals(symmetric).real)[::-1], rtol=1e-5)
    assert "singular values" not in first
    np.testing.assert_allclose(second["singular values"], np.sqrt(np.linalg.eigvalsh(other @ other.T))[::-1], rtol=1e-6)


def test_the_row_shown_by_default_is_in_the_middle(tmp_path, monkeypatch):
    portraits = []
    original = mask_pictures._figure
    monkeypatch.setattr(
        mask_pictures, "_figure", lambda portrait, shown: portraits.append(portrait) or original(portrait, shown)
    )
    (tmp_path / "graph.txt").write_text("0 1\n2 3\n3 4\n4 5\n5 6\n")
    for graph in ("grid:5x7", "grid:3x5x5", str(tmp_path / "graph.txt")):
        draw_mask("power-series", graph, tmp_path / "mask.png")
    assert [portrait.nodes for portrait in portraits] == [[17], [37], [4]]
    for portrait in portraits:
        np.testing.assert_array_equal(portrait.rows, portrait.dense[portrait.nodes])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": [-1]}, "num_nodes=5"),
        ({"nodes": [0] * 7}, "At most 6 rows"),
        ({"show": ["cube"]}, "rows, heat, spectrum"),
        ({"head": 2}, "num_heads=1"),
        ({"settings": {"f": [float("nan")] * 11}}, "finite"),
    ],
)
def test_what_cannot_be_drawn_is_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        draw_mask("walk", "cycle:5", tmp_path / "mask.png", **options)
    assert not list(tmp_path.iterdir())


def test_masks_that_are_not_finite_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tm.PowerSeriesMask, "to_dense", lambda mask: torch.full((1, 5, 5), torch.nan))
    with pytest.raises(ValueError, match="not finite"):
        draw_mask("power-series", "cycle:5", tmp_path / "mask.png")


def test_entries_that_stand_alone_are_seen_in_large_masks(monkeypatch):
    monkeypatch.setattr(mask_pictures, "MAX_PIXELS", 4)
    dense = np.zeros((10, 10))
    dense[0, 9], dense[4, 4], dense[4, 5] = -2.0, 1.0, -0.5
    pooled, block = mask_pictures._pool(dense)
    assert block == 3
    assert pooled.shape == (4, 4)
    assert {(i, j): pooled[i, j] for i, j in np.argwhere(pooled).tolist()} == {(0, 3): -2.0, (1, 1): 1.0}
    same, block = mask_pictures._pool(dense[:4, :4])
    assert block == 1
    assert same.shape == (4, 4)
