import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import topomask as tm
from helpers.graphs import ragged_graph
from helpers.mask_cases.walks import walk_mask
from topomask.pictures.plots import DIVERGING, SEQUENTIAL, draw_on_graph, mask_rows, save_figure, shades
from topomask.support.files import write_atomically


def test_rows_are_those_of_the_dense_mask():
    mask = walk_mask(ragged_graph(), num_heads=2)
    for head in range(2):
        expected = mask.to_dense()[head, [3, 0, 3]].detach()
        np.testing.assert_allclose(mask_rows(mask, [3, 0, 3], head), expected)
    assert mask_rows(tm.LowRankMask(torch.ones(4, 1)), [1]).dtype == np.float32


def test_colours_show_the_sign():
    positive, mixed = shades(np.array([0.0, 4.0, -1e-9])), shades(np.array([-1.0, 4.0]))
    assert (positive.cmap.name, mixed.cmap.name) == (SEQUENTIAL, DIVERGING)
    assert positive.norm(1.0) == pytest.approx(0.5)
    assert mixed.norm(np.array([-4.0, -1.0, 0.0, 1.0])).tolist() == pytest.approx([0.0, 0.25, 0.5, 0.75])
    assert shades(np.zeros(3)).norm(0.0) == 0.0


@pytest.mark.parametrize("cmap", [SEQUENTIAL, DIVERGING])
def test_colours_can_be_told_apart_by_lightness(cmap):
    """From nothing to the largest entry, and on either side of zero, lightness falls all the way."""
    from matplotlib import colormaps

    shade = colormaps[cmap](np.linspace(0, 1, 101))[:, :3]
    linear = np.where(shade <= 0.04045, shade / 12.92, ((shade + 0.055) / 1.055) ** 2.4)
    light = linear @ [0.2126, 0.7152, 0.0722]
    sides = [light] if cmap == SEQUENTIAL else [light[50:], light[50::-1]]
    assert all((np.diff(side) < 1e-3).all() and side[0] > 4 * side[-1] for side in sides)


def test_long_edges_can_be_left_out():
    graph, places = tm.cycle_graph(4), np.array([[0.0, 0], [1, 0], [2, 0], [3, 0]])
    counts = []
    for longest in (np.inf, 1.5):
        axes = Figure().add_subplot()
        draw_on_graph(axes, graph, places, np.arange(4.0), 1, shades(np.arange(4.0)), longest)
        counts.append(len(axes.collections[0].get_segments()))
    assert counts == [8, 6]


def test_files_are_whole_or_not_there(tmp_path):
    path = tmp_path / "new" / "picture.png"
    save_figure(Figure(), path)
    before = path.read_bytes()
    assert before.startswith(b"\x89PNG")

    def fail(temporary):
        temporary.write_bytes(b"half")
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        write_atomically(path, fail)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
