"""Pictures for the docs on masks: rows of every mask on a small graph."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure

import topomask as tm
from topomask.pictures.layouts import layout
from topomask.pictures.named_graphs import NamedGraph, load_graph
from topomask.pictures.named_masks import build_mask
from topomask.pictures.plots import add_colour_bar, draw_on_graph, mask_rows, save_figure, shades


class Panel(NamedTuple):
    """One mask on one graph."""

    title: str
    graph: str
    node: int
    make: Callable[[NamedGraph], tm.Mask]


_F = 0.8 ** torch.arange(7)
_DECAY = torch.tensor([1.0, 0.7, 0.5, 0.3, 0.2, 0.1])
_RISING = torch.linspace(0.05, 0.95, 9)
_FILTERS = {"num_realizations": 4096, "kind": "conv", "kernel_size": 12, "gated": False, "seed": 1}


def _offsets() -> torch.Tensor:
    """A weight per offset, larger towards the lower right."""
    offsets = torch.arange(-15.0, 16.0)
    return torch.exp(-0.15 * (offsets[:, None] ** 2 + offsets**2) ** 0.5) * (
        1.2 + torch.tanh(offsets[:, None] + offsets)
    )


def _video(source: NamedGraph) -> tm.Mask:
    """Frames in order, each a grid."""
    assert source.shape == (3, 8, 8)
    time = tm.ToeplitzMask(3, causal=True, f=torch.tensor([0.25, 0.5, 1.0]))
    return tm.KroneckerMask(time, tm.PowerSeriesMask(tm.grid_graph(8, 8), tm.series.heat(8, time=2.0)))


def _named(mask: str, **settings: Any) -> Callable[[NamedGraph], tm.Mask]:
    """Build a mask of the registry on the graph of its panel."""
    return lambda source: build_mask(mask, source, settings)


GALLERY: dict[str, list[Panel]] = {
    "walks": [
        Panel("WalkMask, 20 walks", "knn:300", 150, _named("walk", max_length=6, f=_F)),
        Panel("PowerSeriesMask, exact", "knn:300", 150, _named("power-series", coefficients=tm.convolve(_F))),
        Panel("VisitMask, 20 walks", "knn:300", 150, _named("visit", max_length=6)),
    ],
    "diffusion": [
        Panel("DiffusionMask, time 1", "knn:300", 150, _named("diffusion", time=1.0)),
        Panel("DiffusionMask, time 10", "knn:300", 150, _named("diffusion", time=10.0)),
        Panel("HypercubeMask, rate 0.5", "hypercube:6", 0, _named("hypercube", rate=0.5)),
    ],
    "grids": [
        Panel("ToeplitzMask, free offsets", "grid:16x16", 136, _named("toeplitz", f=_offsets())),
        Panel("ToeplitzMask, 1 / (1 + distance)", "grid:16x16", 136, _named("toeplitz", distance="l1")),
        Panel("StochasticPositionMask, filters of 12", "path:64", 32, _named("stochastic-position", **_FILTERS)),
    ],
    "forests": [
        Panel("ForestMask, exp(-d / 2)", "tree:120", 3, _named("forest", rate=0.5)),
        Panel("ForestMask, a table: distance 4 only", "tree:120", 3, _named("forest", table=torch.eye(5)[4])),
        Panel("ForestMask.from_graph, exp(-d / 3)", "knn:200", 100, _named("spanning-forest", rate=1 / 3)),
    ],
    "neighbourhoods": [
        Panel("NeighborMask", "ba:60", 40, _named("neighbor")),
        Panel("ShortestPathMask", "ba:60", 40, _named("shortest-path", max_distance=5, initial=_DECAY)),
        Panel("DegreeMask, z grows with the degree", "ba:60", 40, _named("degree", max_degree=8, z=_RISING)),
    ],
    "matrices": [
        Panel("LowRankMask, rank 3", "grid:16x16", 136, lambda _: tm.LowRankMask(_waves(3))),
        Panel("LearnedFeatureMask, at the start", "grid:16x16", 136, lambda _: _seeded(256)),
        Panel("DenseMask, a given matrix", "grid:16x16", 136, lambda _: tm.DenseMask(_same_colour())),
    ],
    "composition": [
        Panel(
            "SumMask: heat + row and column",
            "grid:16x16",
            136,
            lambda s: tm.PowerSeriesMask(s.graph, tm.series.heat(8, time=2.0)) + 0.02 * tm.DenseMask(_cross()),
        ),
        Panel("KroneckerMask: causal time x space", "grid:3x8x8", 91, _video),
    ],
}


def _waves(rank: int) -> torch.Tensor:
    place = torch.arange(16.0)
    waves = torch.stack([torch.cos(torch.pi * k * (place + 0.5) / 16) for k in range(rank)], dim=1)
    return (waves[:, None] + waves[None, :]).reshape(256, rank) / 2


def _seeded(size: int) -> tm.Mask:
    torch.manual_seed(0)
    return tm.LearnedFeatureMask(size, num_features=16)


def _same_colour() -> torch.Tensor:
    """Squares of a checkerboard see those of the same colour."""
    colour = (torch.arange(16)[:, None] // 4 + torch.arange(16) // 4) % 2
    return (colour.reshape(-1, 1) == colour.reshape(-1)).float()


def _cross() -> torch.Tensor:
    row = torch.arange(256) // 16
    column = torch.arange(256) % 16
    return ((row[:, None] == row) | (column[:, None] == column)).float()


def draw_family(name: str, path: Path) -> None:
    """Draw one family of masks."""
    panels = GALLERY[name]
    figure = Figure(figsize=(4.6 * len(panels), 4.2), layout="constrained")
    for index, panel in enumerate(panels):
        source = load_graph(panel.graph)
        mask = panel.make(source)
        values = mask_rows(mask, [panel.node])[0]
        colours = shades(values)
        axes = figure.add_subplot(1, len(panels), index + 1)
        places = layout(source.graph) if source.places is None else source.places
        solid = source.shape is not None and len(source.shape) > 2
        draw_on_graph(axes, source.graph, places, values, panel.node, colours, 1.5 if solid else float("inf"))
        axes.set_title(panel.title, fontsize=11)
        add_colour_bar(figure, axes, colours, "entry")
    save_figure(figure, path, dpi=110)


def main(output: Path = Path("docs/figures/masks")) -> None:
    """Draw all families of masks in a folder."""
    output.mkdir(parents=True, exist_ok=True)
    for name in GALLERY:
        draw_family(name, output / f"{name}.png")
        print(f"wrote {output / f'{name}.png'}")


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:]))
