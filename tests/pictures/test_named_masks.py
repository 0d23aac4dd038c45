import pytest
import torch

import topomask as tm
from topomask.masks import dense
from topomask.masks.registry import ON_GRAPHS, MaskEntry
from topomask.pictures.named_graphs import load_graph
from topomask.pictures.named_masks import build_mask, parse_settings


@pytest.mark.parametrize("name", ON_GRAPHS)
def test_every_mask_can_be_built_by_name(name):
    """On a path, which is a grid and a forest, or on a hypercube where a dimension is wanted."""
    entry = ON_GRAPHS[name]
    mask = build_mask(name, load_graph("hypercube:3" if entry.place == "dim" else "path:8"), {})
    assert mask.on().num_queries == 8
    assert type(mask).__name__ == entry.class_name


def test_settings_reach_the_mask():
    settings = parse_settings(["num-walks=3", "max_length=2", "f=1,0.5,0.25", "symmetric=false", "coupling=iid"])
    mask = build_mask("walk", load_graph("cycle:5"), settings, seed=4)
    assert (mask.walks.num_rows, mask.symmetric, mask.seed) == (5, False, 4)
    assert mask.f.tolist() == [[1.0, 0.5, 0.25]]
    series = build_mask("power-series", load_graph("cycle:5"), {"coefficients": [0.0, 1.0]})
    torch.testing.assert_close(series.to_dense()[0, 0], torch.tensor([0.0, 0.5, 0.0, 0.0, 0.5]))


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("-0.5", -0.5), ("1e-3", 1e-3), ("true", True), ("None", None), ("1,2", [1, 2]), ("a=b", "a=b")],
)
def test_values_are_read(text, value):
    assert parse_settings([f"name={text}"]) == {"name": value}


@pytest.mark.parametrize("texts", [["num_walks"], ["=3"], ["a b=3"], ["a=1", "a=2"]])
def test_settings_that_are_none_are_refused(texts):
    with pytest.raises(ValueError, match=r"name=value|twice"):
        parse_settings(texts)


def test_a_mask_says_what_it_needs(monkeypatch):
    """A class is given its place; what has no default must be set."""

    class GridMask(tm.DenseMask):
        def __init__(self, shape, scale):
            super().__init__(torch.ones(6, 6) * scale)
            self.shape = shape

    monkeypatch.setitem(ON_GRAPHS, "toy", MaskEntry("dense:GridMask", "a toy", "O(N^2)", "shape"))
    monkeypatch.setattr(dense, "GridMask", GridMask, raising=False)
    grid = load_graph("grid:2x3")
    assert build_mask("toy", grid, {"scale": 2.0}).shape == (2, 3)
    with pytest.raises(ValueError, match="mask 'toy' needs a grid, as in --graph grid:16x16, but the graph is cycle"):
        build_mask("toy", load_graph("cycle:6"), {"scale": 2.0})
    with pytest.raises(ValueError, match=r"mask 'toy' needs scale\. Pass --set scale="):
        build_mask("toy", grid, {})
    with pytest.raises(ValueError, match="mask 'toy' has no option `shape`"):
        build_mask("toy", grid, {"shape": (1, 2), "scale": 1.0})
    with pytest.raises(ValueError, match="does not accept these options"):
        build_mask("toy", grid, {"scale": [1.0]})
