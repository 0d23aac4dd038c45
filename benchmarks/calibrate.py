"""Measure the constants of the cost model in ``topomask/planning.py``, in nanoseconds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

import topomask as tm
from benchmarks import report

WIDTH = 64


def seconds(run: Callable[[], object], repeats: int = 5) -> float:
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    graph = tm.grid_graph(64, 64)
    mask = tm.WalkMask(graph, seed=0, symmetric=False)
    both = tm.WalkMask(graph, seed=0)
    q, k, v = torch.randn(3, 1, 1, graph.num_nodes, WIDTH)
    pairs, entries = len(mask.pattern().columns), graph.num_nodes**2
    with torch.no_grad():
        over_pairs = seconds(lambda: tm.masked_attention(q, k, v, mask, strategy="pairs"))
        over_features = seconds(lambda: tm.masked_attention(q, k, v, mask, strategy="features"))
        dense = tm.DenseMask(mask.to_dense())
        over_dense = seconds(lambda: tm.masked_attention(q, k, v, dense, strategy="dense"))
        refresh = seconds(both._entries)
    found = {
        "pair (per pair and unit of width, score and sum)": over_pairs / (pairs * 2 * WIDTH),
        "refresh (per pair of walks that meet)": refresh / both.num_pairs_bound / 2,
        "feature (per multiply-add)": over_features / (WIDTH * WIDTH * (mask.product_cost + graph.num_nodes)),
        "dense (per entry, at width 64)": over_dense / entries,
    }
    report.table(["constant", "ns"], [[name, f"{1e9 * value:.3f}"] for name, value in found.items()])
    report.save("calibrate", {"nanoseconds": {name: 1e9 * value for name, value in found.items()}})


if __name__ == "__main__":
    main()
