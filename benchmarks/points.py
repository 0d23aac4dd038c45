"""Point clouds on the fly: sampling walks on neighbour lists and attending, against finding the neighbours.

32,768 random points in three dimensions with directed lists of 3 neighbours, 27 repelling walks of 3 hops, asymmetric,
64 features, 64 values, forward. The lists are given; finding them with SciPy's cKDTree is timed separately.
"""

from __future__ import annotations

import statistics

import numpy as np
import torch
from scipy.spatial import cKDTree

import topomask as tm
from benchmarks import measure, report

WIDTH = 64
NEIGHBOURS = 3
HOPS = 3


def main(quick: bool = False) -> None:
    torch.manual_seed(0)
    num_points = 2048 if quick else 32_768
    points = np.random.default_rng(0).random((num_points, 3))
    lists = find_neighbours(points, workers=2)
    graph = make_graph(lists)
    mask = tm.WalkMask(graph, num_walks=NEIGHBOURS**HOPS, max_length=HOPS, symmetric=False, seed=0)
    q, k, v = torch.randn(3, 1, 1, num_points, WIDTH)

    def sample() -> tm.Operator:
        # Pass the walks, or the ones cached in the graph would be used.
        return mask.on(graph, mask.sample(graph))

    runs: dict[str, measure.Run] = {
        "cKDTree, build and query, 1 worker": lambda: find_neighbours(points, workers=1),
        "cKDTree, build and query, 2 workers": lambda: find_neighbours(points, workers=2),
        "sample and attend": lambda: tm.masked_attention(q, k, v, sample()),
        "graph from the lists": lambda: make_graph(lists),
        "sample": sample,
        "attend": lambda: tm.masked_attention(q, k, v, mask),
        "graph, sample and attend": lambda: tm.masked_attention(q, k, v, mask.on(make_graph(lists))),
    }
    with torch.no_grad():
        times = measure.interleave(runs, 3 if quick else 9)
    report.table(measure.TIME_HEADER, measure.time_rows(times))
    fastest = min((name for name in runs if "cKDTree" in name), key=lambda name: statistics.median(times[name]))
    found = measure.ratio(times["sample and attend"], times[fastest])
    whole = measure.ratio(times["graph, sample and attend"], times[fastest])
    ratios = report.bars(
        [
            report.Bar(f"sample and attend / {fastest}", found.value, "<=", 1.0, str(found)),
            report.Bar(f"graph, sample and attend / {fastest}", whole.value, shown=str(whole)),
        ],
        quick=quick,
    )
    report.save("points", {"seconds": times, "bars": ratios, "quick": quick})


def find_neighbours(points: np.ndarray, workers: int) -> np.ndarray:
    """The nearest neighbours of every point, [N, 3], without the point itself, which the tree finds first."""
    nearest = cKDTree(points).query(points, k=NEIGHBOURS + 1, workers=workers)[1]
    return np.asarray(nearest)[:, 1:]


def make_graph(lists: np.ndarray) -> tm.Graph:
    """A directed graph of neighbour lists."""
    source = np.repeat(np.arange(len(lists)), lists.shape[1])
    return tm.Graph.from_edges(np.stack([source, lists.ravel()]), len(lists), directed=True)


if __name__ == "__main__":
    main()
