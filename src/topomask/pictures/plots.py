"""Drawing on graphs, with colours that colour-blind readers can tell apart."""

from __future__ import annotations

from pathlib import Path
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
from topomask.support.files import write_atomically

# Light is nothing, so that what counts stands out on white; the other has white at zero.
SEQUENTIAL = "YlOrRd"
DIVERGING = "PuOr_r"
# What marks the node whose row is shown.
MARK = "tab:blue"
# Nodes from which on vector pictures hold them as pixels.
_MANY = 3000


def mask_rows(mask: Mask, nodes: list[int], head: int = 0) -> Array:
    """Rows of a mask, [len(nodes), N]."""
    with torch.no_grad():
        return mask.on().submatrix(torch.tensor(nodes), None)[head].cpu().numpy()


def shades(values: Array) -> ScalarMappable:
    """Colours for the entries of a mask: roots, so that small entries show; about zero where some are negative."""
    size = float(np.abs(values).max(initial=0.0)) or 1.0
    # Rounding alone does not make a mask negative.
    if values.min(initial=0.0) < -1e-6 * size:
        norm: Normalize = FuncNorm((_signed_root, _signed_square), vmin=-size, vmax=size)
        return ScalarMappable(norm, DIVERGING)
    return ScalarMappable(PowerNorm(0.5, 0, size, clip=True), SEQUENTIAL)


def add_colour_bar(figure: Figure, axes: Axes, colours: ScalarMappable, label: str) -> None:
    """A bar beside a picture, with numbers at equal distances."""
    top = cast("float", colours.norm.vmax)
    ticks = top * np.linspace(0.0, 1.0, 5) ** 2
    if colours.norm.vmin:
        ticks = np.concatenate([-ticks[:0:-2], ticks[::2]])
    bar = figure.colorbar(colours, ax=axes, shrink=0.8, pad=0.03, label=label)
    bar.set_ticks(ticks.tolist(), labels=[f"{tick:.2g}" for tick in ticks])
    bar.minorticks_off()


def _signed_root(x: Array) -> Array:
    return np.sign(x) * np.sqrt(np.abs(x))


def _signed_square(x: Array) -> Array:
    return np.sign(x) * x**2


def draw_on_graph(
    axes: Axes,
    graph: Graph,
    places: Array,
    values: Array,
    node: int | None,
    colours: ScalarMappable,
    longest: float = np.inf,
) -> None:
    """Nodes coloured by values, one of them marked, over the edges.

    Args:
        axes: Where to draw.
        graph: The graph.
        places: Coordinates, [N, 2].
        values: One number per node, [N].
        node: The node to mark; None for none.
        colours: What :func:`shades` gave.
        longest: Edges that are longer in the picture are left out.
    """
    ends = places[graph.to_edge_index()[0].numpy().T]  # [nnz, 2, 2]
    ends = ends[np.linalg.norm(ends[:, 0] - ends[:, 1], axis=1) <= longest]
    many = graph.num_nodes > _MANY
    width = float(np.clip(40.0 / np.sqrt(graph.num_nodes), 0.15, 1.0))
    lines = LineCollection(ends.tolist(), colors="0.8", linewidths=width, zorder=0, rasterized=many)
    axes.add_collection(lines)
    size = _node_size(places)
    # In a large graph dots are small, and those of large entries grow, so that they are seen.
    part = np.sqrt(np.abs(values) / (np.abs(values).max(initial=0.0) or 1.0))
    sizes = size + max(0.0, 40.0 - size) * part
    # The largest entries are drawn last, so that none hides behind a small one.
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


def _node_size(places: Array) -> float:
    """The area of a dot, in square points, such that most dots do not touch in a panel about 240 points wide."""
    if len(places) < 2:
        return 90.0
    apart = np.quantile(cKDTree(places).query(places, k=2)[0][:, 1], 0.2)
    extent = float(np.ptp(places, axis=0).max()) or 1.0
    return float(np.clip((0.8 * 240.0 * apart / extent) ** 2, 4.0, 90.0))


def save_figure(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Write a picture in the format of its suffix."""
    kind = path.suffix[1:].lower()
    write_atomically(path, lambda temporary: figure.savefig(temporary, dpi=dpi, format=kind))


def write_content(path: Path, content: bytes) -> None:
    """Write all of a file or nothing."""
    write_atomically(path, lambda temporary: temporary.write_bytes(content))
