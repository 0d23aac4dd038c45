"""Plots of a run: loss, metrics, and the learnt modulation of masks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from topomask.support.files import write_atomically
from topomask.support.imports import need
from topomask.train.reports import read_metrics
from topomask.walks.modulation import Modulation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Fields of a line that are not plotted.
_NOT_PLOTTED = {"event", "step", "epoch", "time", "lr", "grad_norm"}
_PANELS_PER_ROW = 4


def plot_run(folder: Path | str, model: nn.Module | None = None) -> list[Path]:
    """Plot the metrics of a run, and the modulations of its model if it has any, in the run folder.

    Args:
        folder: The run folder.
        model: The trained model.

    Returns:
        Paths of the plots: ``loss.png``, one for every other evaluation metric, and ``modulation.png``.
    """
    folder = Path(folder)
    lines = read_metrics(folder / "metrics.jsonl")
    names = {"loss": None} | {name: None for line in lines if line["event"] == "eval" for name in line}
    # Metric names may contain slashes, as in val/loss.
    plotted = {name: folder / (re.sub(r"[/\\]", "-", name) + ".png") for name in names if name not in _NOT_PLOTTED}
    for name, path in plotted.items():
        plot_metric(lines, name, path)
    pictures = [*plotted.values()]
    if model is not None and find_modulations(model):
        pictures.append(folder / "modulation.png")
        plot_modulations(model, pictures[-1])
    return pictures


def plot_metric(lines: list[dict[str, Any]], name: str, path: Path) -> None:
    """Plot a metric over the epochs, in training and in evaluation."""
    figure = _new_figure(6, 3.8)
    axes = figure.subplots()
    for event, label, style in (("train", "training", "-"), ("eval", "evaluation", "o-")):
        points = [(x["epoch"], x[name]) for x in lines if x["event"] == event and x.get(name) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), style, label=label, markersize=4, linewidth=1.4)
    axes.set(xlabel="epoch", ylabel=name.replace("_", " "))
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(frameon=False)
    save_figure(figure, path)


def find_modulations(model: nn.Module) -> dict[str, Modulation]:
    """The modulations of a model, by the names of their masks; shared ones are listed once."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, Modulation)}
    return {name.removesuffix(".modulation") or "mask": module for name, module in found.items()}


def plot_modulations(model: nn.Module, path: Path) -> None:
    """Plot f over the walk length: one panel per mask, one line per head."""
    modulations = find_modulations(model)
    if not modulations:
        raise ValueError("`model` has no mask with a learnt modulation, so there is nothing to plot.")
    columns = min(len(modulations), _PANELS_PER_ROW)
    rows = -(-len(modulations) // columns)
    figure = _new_figure(1.2 + 2.8 * columns, 0.6 + 2.6 * rows)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axes in grid.flat[len(modulations) :]:
        axes.set_axis_off()
    for axes, (name, modulation) in zip(grid.flat, modulations.items(), strict=False):
        for head, values in enumerate(modulation().detach().float().cpu()):
            axes.plot(values, "o-", label=f"head {head}", markersize=3, linewidth=1.2)
        axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("length of walk k")
        axes.locator_params(axis="x", integer=True)
        axes.grid(alpha=0.3)
    for axes in grid[:, 0]:
        axes.set_ylabel("$f_k$")
    if max(modulation.num_heads for modulation in modulations.values()) > 1:
        grid[0, 0].legend(frameon=False, fontsize=7)
    save_figure(figure, path)


def _new_figure(width: float, height: float) -> Figure:
    # Imported on first use, since that takes half a second.
    return cast("Figure", need("matplotlib.figure", "A plot").Figure(figsize=(width, height), layout="constrained"))


def save_figure(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Write a figure atomically, in the format of its suffix."""
    kind = path.suffix[1:].lower() or "png"
    write_atomically(path, lambda temporary: figure.savefig(temporary, dpi=dpi, format=kind))
