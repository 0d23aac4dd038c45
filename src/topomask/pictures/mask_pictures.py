"""Pictures of a mask: its rows on the graph, its entries, its spectrum; and a report with its costs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from scipy.sparse.csgraph import connected_components

import topomask as tm
from topomask.graph.input import Array
from topomask.pictures.layouts import layout
from topomask.pictures.named_graphs import NamedGraph, load_graph
from topomask.pictures.named_masks import build_mask
from topomask.pictures.pages import Section, Table, draw_picture, to_html
from topomask.pictures.plots import add_colour_bar, draw_on_graph, mask_rows, save_figure, shades
from topomask.support.files import write_content

PICTURES = ("rows", "heat", "spectrum")
SUFFIXES = (".png", ".svg", ".pdf", ".html")
# Largest number of nodes for which all entries are computed.
MAX_DENSE = 2000
MAX_ROWS = 6
# Rows and columns of the picture of all entries.
MAX_PIXELS = 500
# Width of features and values for which plans are made.
_WIDTH = 64
_POINTER = {"arrowstyle": "-|>", "color": "tab:blue", "lw": 0, "shrinkA": 0, "shrinkB": 0}


@dataclass(frozen=True)
class Portrait:
    """A mask on a graph, and everything that is drawn of one head."""

    source: NamedGraph
    mask: tm.Mask
    title: str
    nodes: list[int]  # whose rows are shown
    rows: Array  # of these nodes, [n, N]
    places: Array  # positions of all nodes, [N, 2]
    dense: Array | None  # the mask, [N, N]; None if it is too large
    eigenvalues: Array | None  # of its symmetric part, ascending, [N]; None if it is too large
    head: int


def draw_mask(
    name: str,
    graph: str,
    output: Path,
    *,
    nodes: Sequence[int] = (),
    settings: dict[str, Any] | None = None,
    show: Sequence[str] = (),
    head: int = 0,
    seed: int = 0,
    directed: bool = False,
) -> list[tuple[str, str]]:
    """Draw a mask on a graph, and return facts about it, as names and values.

    Masks are those of :data:`topomask.masks.registry.ON_GRAPHS`, with `settings` as arguments, and graphs those of
    :func:`topomask.pictures.named_graphs.load_graph`. `output` is a picture (PNG, SVG, PDF) or a report (HTML). By
    default, the row of a node in the middle is shown, and all pictures that the size allows.
    """
    if output.suffix.lower() not in SUFFIXES:
        raise ValueError(f"`output` must end in {', '.join(SUFFIXES)}, but is {output}.")
    source = load_graph(graph, seed, directed)
    _check_choices(show, nodes, source.graph.num_nodes)
    mask = build_mask(name, source, settings or {}, seed)
    num_queries = mask.on().num_queries
    if num_queries != source.graph.num_nodes:
        raise ValueError(f"The mask has {num_queries} queries, but the graph {source.graph.num_nodes} nodes.")
    if not 0 <= head < mask.num_heads:
        raise ValueError(f"`head` must lie in [0, num_heads={mask.num_heads}), but is {head}.")
    portrait = _sit(source, mask, f"{name} mask: {source.title}", list(nodes), head, seed)
    facts = _facts(portrait)
    shown = [kind for kind in PICTURES if kind in (show or PICTURES) and (kind == "rows" or portrait.dense is not None)]
    if output.suffix.lower() == ".html":
        write_content(output, _report(portrait, shown, facts).encode())
    else:
        save_figure(_figure(portrait, shown), output)
    return facts


def _check_choices(show: Sequence[str], nodes: Sequence[int], size: int) -> None:
    for kind in show:
        if kind not in PICTURES:
            raise ValueError(f"`show` must be any of {', '.join(PICTURES)}, but has {kind!r}.")
        if kind != "rows" and size > MAX_DENSE:
            raise ValueError(
                f"The picture {kind!r} needs all {size:,} x {size:,} entries of the mask, which are computed for up to "
                f"{MAX_DENSE:,} nodes. Pass only --show rows, or choose a smaller graph."
            )
    if len(nodes) > MAX_ROWS:
        raise ValueError(f"At most {MAX_ROWS} rows can be shown, but {len(nodes)} nodes are given. Pass fewer --node.")
    for node in nodes:
        if not 0 <= node < size:
            raise ValueError(f"A node must lie in [0, num_nodes={size}), but is {node}.")


def _sit(source: NamedGraph, mask: tm.Mask, title: str, nodes: list[int], head: int, seed: int) -> Portrait:
    places = layout(source.graph, seed) if source.places is None else source.places
    if not nodes:
        nodes = [_middle(source, places)]
    if mask.num_heads > 1:
        title += f", head {head} of {mask.num_heads}"
    dense = eigenvalues = None
    if source.graph.num_nodes <= MAX_DENSE:
        with torch.no_grad():
            dense = mask.to_dense()[head].double().cpu().numpy()
        if not np.isfinite(dense).all():
            raise ValueError("The mask cannot be drawn: some of its entries are not finite. Check its options (--set).")
        eigenvalues = np.linalg.eigvalsh((dense + dense.T) / 2)
    rows = mask_rows(mask, nodes, head) if dense is None else dense[nodes]
    return Portrait(source, mask, title[0].upper() + title[1:], nodes, rows, places, dense, eigenvalues, head)


def _middle(source: NamedGraph, places: Array) -> int:
    """The middle of a grid, or the node nearest to the centre of the largest component."""
    if source.shape is not None:
        return int(np.ravel_multi_index([size // 2 for size in source.shape], source.shape))
    component = connected_components(source.graph.to_scipy(), directed=False)[1]
    inside = np.flatnonzero(component == np.bincount(component).argmax())
    offset = places[inside] - places[inside].mean(axis=0)
    return int(inside[(offset**2).sum(axis=1).argmin()])


def _panels(portrait: Portrait, shown: Sequence[str]) -> list[tuple[str, int]]:
    return [(kind, index) for kind in shown for index in range(len(portrait.nodes) if kind == "rows" else 1)]


def _figure(portrait: Portrait, shown: Sequence[str]) -> Figure:
    """All pictures in one figure."""
    panels = _panels(portrait, shown)
    columns = len(panels) if len(panels) <= 3 else 3 if len(panels) % 3 == 0 or len(panels) > 4 else 2
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(4.9 * columns, 4.1 * lines + 0.5), layout="constrained")
    for place, (kind, index) in enumerate(panels):
        _draw(figure, figure.add_subplot(lines, columns, place + 1), portrait, kind, index)
    # Matplotlib would parse text between the dollars of a file name as a formula.
    figure.suptitle(textwrap.fill(portrait.title, 42 * columns).replace("$", r"\$"))
    return figure


def _draw(figure: Figure, axes: Axes, portrait: Portrait, kind: str, index: int) -> None:
    if kind == "rows":
        _draw_row(figure, axes, portrait, index)
    elif kind == "heat":
        _draw_heat(figure, axes, portrait)
    else:
        _draw_spectrum(axes, portrait)


def _draw_row(figure: Figure, axes: Axes, portrait: Portrait, index: int) -> None:
    colours, node, source = shades(portrait.rows), portrait.nodes[index], portrait.source
    # Edges between the layers of a 3-D grid would run across the layers.
    solid = source.shape is not None and len(source.shape) > 2
    places, values = portrait.places, portrait.rows[index]
    draw_on_graph(axes, source.graph, places, values, node, colours, longest=1.5 if solid else np.inf)
    axes.set_title(f"Row of node {node} (circled){', layer by layer' if solid else ''}", fontsize=11)
    add_colour_bar(figure, axes, colours, f"entry $M_{{{node},\\,j}}$")


def _draw_heat(figure: Figure, axes: Axes, portrait: Portrait) -> None:
    colours = shades(cast("Array", portrait.dense))
    pooled, block = _pool(cast("Array", portrait.dense))
    end = block * len(pooled) - 0.5
    image = axes.imshow(pooled, cmap=colours.cmap, norm=cast("Normalize", colours.norm), extent=(-0.5, end, end, -0.5))
    # Interpolation would hide single entries.
    image.set_interpolation("nearest")
    for node in portrait.nodes:
        axes.annotate(
            "", (0, node), (-0.03, node), ("axes fraction", "data"), arrowprops=_POINTER, annotation_clip=False
        )
    axes.set(xlabel="key $j$", ylabel="query $i$")
    axes.set_title("All entries" + f" (the largest of each {block} x {block} block)" * (block > 1), fontsize=11)
    add_colour_bar(figure, axes, colours, "entry $M_{ij}$")


def _pool(dense: Array) -> tuple[Array, int]:
    """The entry of largest magnitude in each block, for at most MAX_PIXELS blocks per side; and the block size."""
    block = max(1, -(-len(dense) // MAX_PIXELS))
    starts = np.arange(0, len(dense), block)
    low, high = (f.reduceat(f.reduceat(dense, starts, axis=0), starts, axis=1) for f in (np.minimum, np.maximum))
    return np.where(high >= -low, high, low), block


def _draw_spectrum(axes: Axes, portrait: Portrait) -> None:
    dense = cast("Array", portrait.dense)
    order = np.arange(1, len(dense) + 1)
    symmetric = _is_symmetric(dense)
    if not symmetric:
        singular = np.linalg.svd(dense, compute_uv=False)
        axes.plot(order, singular, color="tab:orange", lw=4, alpha=0.6, label="singular values")
    eigenvalues = cast("Array", portrait.eigenvalues)[::-1]
    label = "eigenvalues" if symmetric else r"eigenvalues of $(M + M^\top)/2$"
    size = float(np.clip(300.0 / len(dense), 1.5, 5.0))
    axes.plot(order, eigenvalues, "o-", color="tab:blue", lw=0.8, ms=size, label=label)
    axes.axhline(0.0, color="0.6", lw=0.8, zorder=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    axes.set(xlabel="rank", ylabel="value")
    axes.set_title("Spectrum", fontsize=11)
    axes.set_box_aspect(1)


def _is_symmetric(dense: Array) -> bool:
    return bool(np.allclose(dense, dense.T, rtol=1e-5, atol=1e-6 * np.abs(dense).max(initial=0.0)))


def _facts(portrait: Portrait) -> list[tuple[str, str]]:
    graph, mask, dense = portrait.source.graph, portrait.mask, portrait.dense
    size = graph.num_nodes
    components = connected_components(graph.to_scipy(), directed=False)[0]
    with torch.no_grad():
        operator = mask.on()
        cost = operator.cost()
        sums = (operator @ torch.ones(mask.num_heads, size, 1, dtype=torch.float64))[portrait.head, :, 0].numpy()
    facts = [
        ("mask", f"{type(mask).__name__}, {mask.num_heads} head{'s' if mask.num_heads > 1 else ''}"),
        ("learnable numbers", f"{sum(p.numel() for p in mask.parameters() if p.requires_grad):,}"),
        ("graph", portrait.source.title + (", directed" if graph.directed else "")),
        ("nodes N", f"{size:,}"),
        ("edges E", f"{graph.num_edges:,}"),
        ("components", f"{components:,}"),
        ("row sums", f"{sums.min():.4g} to {sums.max():.4g}, mean {sums.mean():.4g}, norm {np.linalg.norm(sums):.4g}"),
    ]
    if dense is not None:
        filled = np.count_nonzero(dense)
        facts.append(("nonzero entries", f"{filled:,} of {dense.size:,} ({filled / dense.size:.1%})"))
        facts.append(("smallest, largest entry", f"{dense.min():.4g}, {dense.max():.4g}"))
        eigenvalues = cast("Array", portrait.eigenvalues)
        name = "eigenvalues" if _is_symmetric(dense) else "eigenvalues of the symmetric part"
        facts.append((name, f"{eigenvalues[0]:.4g} to {eigenvalues[-1]:.4g}"))
    elif cost.pairs is not None:
        pairs = cost.pairs / mask.num_heads
        facts.append(("nonzero entries", f"about {pairs:,.0f} of {size**2:,} ({pairs / size**2:.2%})"))
    facts.append(("multiply-adds of a product", f"{cost.product:,} per column"))
    for kernel in ("linear", "softmax"):
        try:
            plan = str(tm.plan_attention(mask, _WIDTH, _WIDTH, kernel=kernel))
        except ValueError as error:
            plan = str(error)
        facts.append((f"{kernel} attention, width {_WIDTH}", plan))
    if dense is None:
        facts.append(("left out", f"all entries and spectrum, which are computed for up to {MAX_DENSE:,} nodes"))
    return facts


def _report(portrait: Portrait, shown: Sequence[str], facts: Sequence[tuple[str, str]]) -> str:
    """An HTML page with all facts and pictures."""
    pictures = []
    for kind, index in _panels(portrait, shown):
        figure = Figure(figsize=(5.2, 4.6), layout="constrained")
        _draw(figure, figure.add_subplot(), portrait, kind, index)
        abouts = {"rows": f"Row of node {portrait.nodes[index]}", "heat": "All entries", "spectrum": "Spectrum"}
        pictures.append(draw_picture(figure, f"{abouts[kind]} of the mask"))
    return to_html(portrait.title, [Section("", table=Table([], facts), pictures=pictures)])
