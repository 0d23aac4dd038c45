import inspect

import pytest
import torch

import topomask as tm
from topomask.recipes import named_masks
from topomask.recipes.named_graphs import load_graph
from topomask.recipes.named_masks import MASKS, MaskRecipe, build_mask, parse_settings


@pytest.mark.parametrize("name", MASKS)
def test_every_mask_can_be_built_by_name(name):
    """On a path, which is a grid and a forest, or on a hypercube where a dimension is wanted."""
    wanted = next(iter(inspect.signature(getattr(tm, MASKS[name].class_name)).parameters))
    mask = build_mask(name, load_graph("hypercube:3" if wanted == "dim" else "path:8"), {})
    assert mask.num_queries == 8
    assert type(mask).__name__ == MASKS[name].class_name
    assert name == name.lower()
    assert MASKS[name].about


def test_settings_reach_the_mask():
    settings = parse_settings(["num-walks=3", "max_length=2", "f=1,0.5,0.25", "symmetric=false", "coupling=iid"])
    mask = build_mask("walk", load_graph("cycle:5"), settings, seed=4)
    assert (mask.features.num_rows, mask.symmetric, mask.seed) == (5, False, 4)
    assert mask.f().tolist() == [[1.0, 0.5, 0.25]]
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
    """A class is given what the name of its first argument asks for; what has no default must be set."""

    class GridMask(tm.DenseMask):
        def __init__(self, shape, scale):
            super().__init__(torch.ones(6, 6) * scale)
            self.shape = shape

    monkeypatch.setitem(named_masks.MASKS, "toy", MaskRecipe("GridMask", "a toy"))
    monkeypatch.setattr(tm, "GridMask", GridMask, raising=False)
    grid = load_graph("grid:2x3")
    assert build_mask("toy", grid, {"scale": 2.0}).shape == (2, 3)
    with pytest.raises(ValueError, match="GridMask needs a grid, as in --graph grid:16x16, but the graph is cycle"):
        build_mask("toy", load_graph("cycle:6"), {"scale": 2.0})
    with pytest.raises(ValueError, match=r"GridMask needs scale\. Pass --set scale="):
        build_mask("toy", grid, {})
    with pytest.raises(ValueError, match="has no option 'shape'"):
        build_mask("toy", grid, {"shape": (1, 2), "scale": 1.0})
    with pytest.raises(ValueError, match="does not take these options"):
        build_mask("toy", grid, {"scale": [1.0]})
