"""Pictures of a study: values with their spread, and training curves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from experiments.reproduce.study import Study, collect
from experiments.reproduce.targets import published
from topomask.pictures.pages import Picture, Section, draw_picture
from topomask.train import read_metrics


def draw_study(study: Study, section: Section, results: Path, runs: Path | None) -> Section:
    """Add pictures of the values to a section and, if asked for, training curves of the runs that still exist."""
    pictures = [_values(study, results)]
    curves = None if runs is None else _curves(study, results, runs)
    return replace(section, pictures=[*pictures, *([] if curves is None else [curves])])


def _values(study: Study, results: Path) -> Picture:
    """Draw one dot per seed and their mean, and published values on the same data with their deviations."""
    values = collect(study, results)
    others = [(label, value) for label, value in study.published if published(value) is not None]
    rows = [label for label, _ in others]
    known = list(enumerate(value for _, value in others))
    known += [
        (place, cell.paper)
        for place, cell in enumerate(study.cells, len(others))
        # Otherwise the paper's values are on other data.
        if study.void_below is not None and published(cell.paper) is not None
    ]
    rows += [cell.label for cell in study.cells]
    figure = Figure(figsize=(7, 0.9 + 0.38 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, cell in enumerate(study.cells, len(others)):
        own = study.scale * np.array(list(values[cell.name].values()))
        if len(own):
            base = cell.name == study.baseline
            axes.plot(own, [place] * len(own), "o", c="tab:gray" if base else "tab:blue", alpha=0.5, ms=5)
            axes.plot([own.mean()], [place], "|", c="black", ms=14, mew=2)
    for place, value in known:
        mean, deviation = published(value) or (np.nan, None)
        axes.errorbar([mean], [place], xerr=deviation, fmt="D", c="tab:orange", ms=5, lw=1.2, capsize=3)
    axes.set_yticks(range(len(rows)), rows)
    # From top to bottom, with space for the marks of the first and the last.
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(alpha=0.3)
    axes.set_xlabel(f"{study.metric.replace('_', ' ')}, {study.unit}")
    about = f"Every {study.repeats.removesuffix('s')}, and the mean" + "; orange: published" * bool(known)
    return draw_picture(figure, about, width=700)


def _curves(study: Study, results: Path, runs: Path) -> Picture | None:
    """Plot the training loss of every cell as the mean over seeds with a result; None if there are no runs."""
    values = collect(study, results)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for cell in study.cells:
        files = [runs / f"{cell.name}-{seed}" / "metrics.jsonl" for seed in sorted(values[cell.name])]
        lines = [_losses(path) for path in files if path.is_file()]
        lines = [line for line in lines if len(line)]
        if lines:
            shortest = min(len(line) for line in lines)
            mean = np.mean([line[:shortest] for line in lines], axis=0)
            axes.plot(mean[:, 0], mean[:, 1], lw=1.2, label=cell.label)
    if not axes.lines:
        return None
    axes.set(xlabel="epoch", ylabel="training loss", yscale="log")
    # Losses often stay within one decade, where powers of ten are poor labels.
    for ticks in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        ticks(_PlainNumbers(labelOnlyBase=False, minor_thresholds=(2, 0.5)))
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False, fontsize=8)
    return draw_picture(figure, f"Training loss, mean over {study.repeats}", width=700)


class _PlainNumbers(LogFormatter):
    """Labels ticks with 0.2 instead of 2e-01; which ticks have a label does not change."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        """The label of a tick, if it has one."""
        return f"{x:g}" if super().__call__(x, pos) else ""


def _losses(path: Path) -> np.ndarray:
    lines = [line for line in read_metrics(path) if line["event"] == "train" and line.get("loss") is not None]
    return np.array([(line["epoch"], line["loss"]) for line in lines])
