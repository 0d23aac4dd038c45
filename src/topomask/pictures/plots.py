"""Drawing values on graphs, in colours that colour-blind readers can distinguish."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import FuncNorm, Normalize, PowerNorm
from matplotlib.figure import Figure
from scipy.spatial import cKDTree

from topomask.graph import Graph
from topomask.graph.input import Array
from topomask.masks import Mask
from topomask.train.plots import save_figure as save_figure

# Zero is light, so that large entries stand out on white.
SEQUENTIAL = "YlOrRd"
DIVERGING = "PuOr_r"
# Colour that marks the node whose row is shown.
MARK = "tab:blue"
# Above this many nodes, vector pictures contain them as pixels.
_MANY = 3000


def mask_rows(mask: Mask, nodes: list[int], head: int = 0) -> Array:
    """Rows of a mask as an array, [len(nodes), N]."""
    with torch.no_grad():
        return mask.on().submatrix(torch.tensor(nodes), None)[head].cpu().numpy()


def shades(values: Array) -> ScalarMappable:
    """Colours for the entries of a mask, on a square-root scale; symmetric about zero if some are negative."""
    size = float(np.abs(values).max(initial=0.0)) or 1.0
    # Rounding errors do not make a mask negative.
    if values.min(initial=0.0) < -1e-6 * size:
        functions = (lambda x: np.sign(x) * np.sqrt(np.abs(x)), lambda x: np.sign(x) * x**2)
        return ScalarMappable(FuncNorm(functions, vmin=-size, vmax=size), DIVERGING)
    return ScalarMappable(PowerNorm(0.5, 0, size, clip=True), SEQUENTIAL)


def add_colour_bar(figure: Figure, axes: Axes, colours: ScalarMappable, label: str) -> None:
    """Add a colour bar with evenly spaced ticks."""
    top = cast("float", colours.norm.vmax)
    ticks = top * np.linspace(0.0, 1.0, 5) ** 2
    if colours.norm.vmin:
        ticks = np.concatenate([-ticks[:0:-2], ticks[::2]])
    bar = figure.colorbar(colours, ax=axes, shrink=0.8, pad=0.03, label=label)
    bar.set_ticks(ticks.tolist(), labels=[f"{tick:.2g}" for tick in ticks])
    bar.minorticks_off()


def draw_on_graph(
    axes: Axes,
    graph: Graph,
    places: Array,
    values: Array,
    node: int | None,
    colours: ScalarMappable,
    longest: float = np.inf,
) -> None:
    """Draw nodes at `places`, [N, 2], coloured by `values`, [N], over the edges of at most the length `longest`.

    The node `node` is marked, and `colours` is the result of :func:`shades`.
    """
    ends = places[graph.to_edge_index()[0].numpy().T]  # [nnz, 2, 2]
    ends = ends[np.linalg.norm(ends[:, 0] - ends[:, 1], axis=1) <= longest]
    many = graph.num_nodes > _MANY
    width = float(np.clip(40.0 / np.sqrt(graph.num_nodes), 0.15, 1.0))
    lines = LineCollection(ends.tolist(), colors="0.8", linewidths=width, zorder=0, rasterized=many)
    axes.add_collection(lines)
    size = 90.0
    if len(places) > 1:
        # Most dots do not touch in a panel about 240 points wide.
        apart = np.quantile(cKDTree(places).query(places, k=2)[0][:, 1], 0.2)
        extent = float(np.ptp(places, axis=0).max()) or 1.0
        size = float(np.clip((0.8 * 240.0 * apart / extent) ** 2, 4.0, 90.0))
    # Dots are small in a large graph, so those of large entries are enlarged.
    part = np.sqrt(np.abs(values) / (np.abs(values).max(initial=0.0) or 1.0))
    sizes = size + max(0.0, 40.0 - size) * part
    # The largest entries are drawn last, so that none is hidden.
    order = np.argsort(np.abs(values), kind="stable")
    axes.scatter(
        places[order, 0],
        places[order, 1],
        c=values[order],
        s=sizes[order],
        cmap=colours.cmap,
        norm=cast("Normalize", colours.norm),
        zorder=1,
        edgecolors="0.55",
        lw=min(0.4, size / 30),
        rasterized=many,
    )
    if node is not None:
        x, y = places[node]
        axes.scatter(x, y, s=max(90.0, 2.6 * size), facecolors="none", edgecolors=MARK, lw=1.8, zorder=2)
    axes.set(xticks=[], yticks=[])
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_box_aspect(1)
    axes.margins(0.06)
    axes.set_frame_on(False)
