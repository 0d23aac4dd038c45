"""Symmetric against asymmetric features of the same power series: error by walkers, pairs and operations.

The paper leaves open which is better. Both estimate sum_k alpha_k W^k: symmetric features with the modulation f where
alpha = f * f, of length L; asymmetric features with alpha itself, of length 2 L.
"""

from __future__ import annotations

from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import torch
from matplotlib.ticker import NullFormatter

import topomask as tm
from benchmarks import report

SEEDS = range(3)
NUM_WALKS = (2, 4, 8, 16, 32, 64, 128)
WIDTH = 64
KINDS = {"symmetric": "tab:blue", "asymmetric": "tab:orange"}


def graphs() -> dict[str, tm.Graph]:
    points = np.random.default_rng(0).random((1024, 3))
    return {
        "32 x 32 grid": tm.grid_graph(32, 32),
        "3-NN of 1,024 points": tm.knn_graph(points, 3),
        "Barabasi-Albert, 1,024 nodes": tm.Graph.from_networkx(nx.barabasi_albert_graph(1024, 3, seed=0)),
    }


def measure(graph: tm.Graph, kind: str, num_walks: int, f: torch.Tensor) -> dict[str, float]:
    """Mean error, entries per row, and operations per row of attention with 64 features and 64 values."""
    symmetric = kind == "symmetric"
    alpha = tm.convolve(f)
    exact = tm.PowerSeriesMask(graph, alpha).to_dense()[0].detach()
    modulation = f if symmetric else alpha
    found = []
    for seed in SEEDS:
        mask = tm.WalkMask(
            graph, num_walks=num_walks, max_length=len(modulation) - 1, f=modulation, symmetric=symmetric, seed=seed
        )
        error = float((mask.to_dense()[0].detach() - exact).norm() / exact.norm())
        operator = mask.on()
        cost, pairs = operator.cost(), len(operator.entries().pattern.columns)
        refresh = (cost.max_pairs or 0) if symmetric else 0
        over_pairs = 2 * pairs * 2 * WIDTH + 2 * refresh
        over_features = 2 * WIDTH * WIDTH * cost.product
        found.append([error, pairs / graph.num_nodes, min(over_pairs, over_features) / graph.num_nodes])
    error, pairs, flops = np.mean(found, axis=0)
    return {"num_walks": num_walks, "error": error, "pairs": pairs, "flops": flops}


def main() -> None:
    modulations = {
        "f = 0.5^k": 0.5 ** torch.arange(6, dtype=torch.float64),
        "f = 1": torch.ones(6, dtype=torch.float64),
    }
    results: dict[str, Any] = {}
    for label, f in modulations.items():
        for name, graph in graphs().items():
            curves = {kind: [measure(graph, kind, n, f) for n in NUM_WALKS] for kind in KINDS}
            results[f"{name}, {label}"] = curves
            rows = [
                [kind, str(p["num_walks"]), f"{p['error']:.4f}", f"{p['pairs']:.0f}", f"{p['flops'] / 1e3:.0f}"]
                for kind, points in curves.items()
                for p in points
            ]
            print(f"{name}, {label}")
            report.table(["features", "walkers", "error", "pairs per row", "kFLOP per row"], rows)
    report.save("symmetry", results)
    _plot(results)


def _plot(results: dict[str, Any]) -> None:
    axes_names = (("num_walks", "walkers per node"), ("pairs", "pairs per row"), ("flops", "FLOPs per row"))
    figure, grid = plt.subplots(len(results), 3, figsize=(10, 2.6 * len(results)), layout="constrained", sharey="row")
    for row, (name, curves) in zip(grid, results.items(), strict=True):
        for axes, (key, label) in zip(row, axes_names, strict=True):
            for kind, colour in KINDS.items():
                points = curves[kind]
                axes.loglog([p[key] for p in points], [p["error"] for p in points], "o-", color=colour, label=kind)
            axes.set_xlabel(label)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_minor_formatter(NullFormatter())
        row[0].set_ylabel("relative error")
        row[0].set_title(name, loc="left", fontsize=9)
    grid[0, 0].legend(frameon=False)
    report.OUTPUT.mkdir(exist_ok=True)
    figure.savefig(report.OUTPUT / "symmetry.png", dpi=120)


if __name__ == "__main__":
    main()
