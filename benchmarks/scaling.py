"""Time, memory and operations against the number of tokens, and where masked attention overtakes softmax (Fig. 3).

A path, 4 i.i.d. walks that halt with probability 0.5, 8 features, 8 values, forward, f fixed.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from torch.nn import functional as F

import topomask as tm
from benchmarks import measure, peers, report
from benchmarks.memory import held_bytes, peak_extra_bytes
from experiments.flops import WIDTH, count_flops, make_mask

SOFTMAX, LINEAR, OURS = "softmax (SDPA)", "linear, unmasked", "linear, masked by walks"
COLOURS = {SOFTMAX: "tab:orange", LINEAR: "tab:gray", OURS: "tab:blue"}
# Softmax attention is skipped if it would take longer, in seconds.
LONGEST = 20.0

Point = dict[str, Any]


def main(quick: bool = False) -> None:
    torch.manual_seed(0)
    points: list[Point] = []
    slowest = 0.0
    for exponent in range(6, 12 if quick else 19):
        # Softmax takes four times as long for twice as many tokens.
        point = measure_point(2**exponent, with_softmax=4 * slowest < LONGEST)
        slowest = statistics.median(point["seconds"].get(SOFTMAX, [LONGEST]))
        points.append(point)
        shown = ", ".join(f"{name} {1e3 * statistics.median(t):.3g} ms" for name, t in point["seconds"].items())
        print(f"N = 2^{exponent}: {shown}; by {point['strategy']}", flush=True)
    print()
    crossings = {kind: crossing(points, kind) for kind in ("seconds", "bytes", "flops")}
    ratios = _report(points, crossings, quick)
    report.save("scaling", {"points": points, "crossings": crossings, "bars": ratios, "quick": quick})
    plot(points, crossings)


def measure_point(num_nodes: int, with_softmax: bool) -> Point:
    """Measure everything for one number of tokens."""
    mask = make_mask(num_nodes, seed=0)
    q, k, v = torch.randn(3, 1, 1, num_nodes, WIDTH)
    runs: dict[str, measure.Run] = {
        OURS: partial(tm.masked_attention, q, k, v, mask),
        LINEAR: partial(peers.linear_attention, q, k, v),
    }
    with torch.no_grad():
        repeats = measure.enough_repeats(runs[OURS], budget=0.5, least=7, most=100)
        softmax = {SOFTMAX: partial(F.scaled_dot_product_attention, q, k, v)} if with_softmax else {}
        if num_nodes <= 2**13:
            seconds = measure.interleave(runs | softmax, repeats, warm_ups=2)
        else:
            seconds = measure.interleave(runs, repeats, warm_ups=2) | measure.interleave(softmax, 1, warm_ups=0)
        runs |= softmax
        peaks = {name: peak_extra_bytes(run) for name, run in runs.items()}
        # What the mask caches for the next call counts too.
        peaks[OURS] += held_bytes(mask)
    counted = count_flops(num_nodes)
    flops = {SOFTMAX: counted["softmax"], LINEAR: counted["linear"], OURS: counted["masked"]}
    return {
        "nodes": num_nodes,
        "strategy": tm.plan_attention(mask, WIDTH, WIDTH).strategy,
        "seconds": seconds,
        "bytes": peaks,
        "flops": {name: flops[name] for name in (*runs, SOFTMAX)},
    }


def crossing(points: list[Point], kind: str) -> float | None:
    """The number of tokens from which ours stays below softmax, interpolated on logarithmic axes.

    0 if it is below at every size, None if it is not below at the largest.
    """
    both = [point for point in points if SOFTMAX in point[kind]]
    nodes = np.log2([point["nodes"] for point in both])
    gap = np.log([_value(point[kind][OURS]) / _value(point[kind][SOFTMAX]) for point in both])
    above = np.flatnonzero(gap > 0)
    if not len(above):
        return 0.0
    if above[-1] == len(gap) - 1:
        return None
    last = above[-1]
    share = gap[last] / (gap[last] - gap[last + 1])
    return float(2 ** (nodes[last] + share * (nodes[last + 1] - nodes[last])))


def _value(found: float | list[float]) -> float:
    return statistics.median(found) if isinstance(found, list) else found


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _report(points: list[Point], crossings: dict[str, float | None], quick: bool) -> dict[str, Any]:
    rows = []
    for point in points:
        row = [f"{point['nodes']:,}", point["strategy"]]
        for kind, scale in (("seconds", 1e3), ("bytes", 1e-3), ("flops", 1e-6)):
            values = [point[kind].get(name) for name in (SOFTMAX, LINEAR, OURS)]
            row.append(" / ".join("-" if x is None else _short(scale * _value(x)) for x in values))
        rows.append(row)
    print("softmax / unmasked linear / ours")
    report.table(["tokens", "way", "ms", "kB", "MFLOP"], rows)
    last = points[-1]["seconds"]
    found = measure.ratio(last[OURS], last[LINEAR])
    name = f"ours / unmasked linear, {points[-1]['nodes']:,} tokens"
    lines = [report.Bar(name, found.value, "<=", 1.5, str(found))]
    for kind, tokens in crossings.items():
        shown = "none of these" if tokens is None else f"{tokens:,.0f}" if tokens else "all of these"
        lines.append(report.Bar(f"tokens from which ours takes less {kind} than softmax", tokens or 0.0, shown=shown))
    return report.bars(lines, quick=quick)


def plot(points: list[Point], crossings: dict[str, float | None]) -> None:
    """Plot three panels on logarithmic axes with the crossings, and times with their quartiles."""
    panels = {"seconds": "time in seconds", "bytes": "memory in bytes, walks included", "flops": "operations (FLOPs)"}
    figure, axes_row = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
    for axes, (kind, label) in zip(axes_row, panels.items(), strict=True):
        for name, colour in COLOURS.items():
            known = [point for point in points if name in point[kind]]
            nodes = [point["nodes"] for point in known]
            axes.plot(nodes, [_value(point[kind][name]) for point in known], "o-", ms=4, color=colour, label=name)
            if kind == "seconds":
                quartiles = np.array([np.quantile(point[kind][name], (0.25, 0.75)) for point in known])
                axes.fill_between(nodes, quartiles[:, 0], quartiles[:, 1], color=colour, alpha=0.2, lw=0)
        if kind == "bytes":
            nodes = [point["nodes"] for point in points]
            axes.plot(nodes, [4 * n**2 for n in nodes], ":", color=COLOURS[SOFTMAX], label="one N x N matrix")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set(xlabel="tokens N", title=label)
        axes.grid(alpha=0.3)
        _mark(axes, crossings[kind])
    figure.suptitle("A path of N tokens, 4 walks per token, 8 features, 8 values, forward")
    handles, labels = axes_row[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    report.OUTPUT.mkdir(exist_ok=True)
    path = report.OUTPUT / "scaling.png"
    figure.savefig(path, dpi=150)
    plt.close(figure)
    print(f"wrote {path}")


def _mark(axes: Axes, tokens: float | None) -> None:
    """Draw a line at a crossing, with a label in the upper left corner, where there is no curve."""
    if not tokens:
        return
    axes.axvline(tokens, color="black", lw=0.8, ls="--")
    words = f"masked takes less than\nsoftmax from N = {tokens:,.0f}"
    box = {"facecolor": "white", "edgecolor": "none", "pad": 2.0}
    axes.text(0.03, 0.96, words, transform=axes.transAxes, va="top", fontsize=9, bbox=box)


if __name__ == "__main__":
    main()
