"""Measure the constants of the cost model behind strategy="auto", and save them for this machine.

Every strategy is timed on small and large problems; its constants are a non-negative least-squares fit of the relative
errors of the times.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import networkx as nx
import numpy as np
import torch
from scipy.optimize import nnls

import topomask as tm
from benchmarks import measure, report
from topomask.attention import costs
from topomask.attention.plan import Kernel, Problem, count_work

# Seconds per measurement.
BUDGET = 0.05


def masks(quick: bool) -> Iterator[tuple[str, tm.WalkMask]]:
    graphs = {
        "grid 12 x 12": tm.grid_graph(12, 12),
        "grid 32 x 32": tm.grid_graph(32, 32),
        "knn 600": tm.knn_graph(np.random.default_rng(0).random((600, 3)), 3),
        "Barabasi-Albert 1,500": tm.Graph.from_networkx(nx.barabasi_albert_graph(1500, 3, seed=0)),
        "star 1,500": tm.Graph.from_edges(np.stack([np.zeros(1500, np.int64), np.arange(1, 1501)])),
    }
    if not quick:
        graphs |= {
            "grid 80 x 80": tm.grid_graph(80, 80),
            "path 16,384": tm.path_graph(16384),
            "knn 16,384": tm.knn_graph(np.random.default_rng(0).random((16384, 3)), 3),
            "Barabasi-Albert 8,192": tm.Graph.from_networkx(nx.barabasi_albert_graph(8192, 3, seed=0)),
        }
    for name, graph in graphs.items():
        for num_walks, length in ((4, 3), (20, 10)):
            for symmetric in (True, False):
                yield name, tm.WalkMask(graph, num_walks=num_walks, max_length=length, symmetric=symmetric, seed=0)


def measurements(quick: bool) -> Iterator[tuple[str, dict[str, float], float]]:
    """Yield strategies, the multiples of their terms, and seconds."""
    for name, mask in masks(quick):
        print(f"  {name}, {mask.walks}", flush=True)
        for learnt in (False, True):
            mask.modulation.weight.requires_grad_(learnt)
            for width in (8, 64):
                yield from _measure(mask, width, "linear")
                if width > 8:
                    yield from _measure(mask, width, "softmax")


def _measure(mask: tm.WalkMask, width: int, kernel: Kernel) -> Iterator[tuple[str, dict[str, float], float]]:
    operator = mask.on()
    q, k, v = torch.randn(3, 1, 1, operator.num_queries, width)
    attend = tm.masked_attention if kernel == "linear" else tm.masked_softmax_attention
    problem = Problem(
        name=operator.name,
        cost=operator.cost(),
        is_all_ones=operator.is_all_ones,
        num_heads=operator.num_heads,
        num_queries=operator.num_queries,
        num_keys=operator.num_keys,
        num_features=width,
        value_dim=width,
        times=1,
        strategy="auto",
        kernel=kernel,
        dropout=False,
    )
    for way, work in count_work(problem).items():
        if work.flops > 4e9:
            continue
        try:
            tm.plan_attention(operator, width, width, strategy=way, kernel=kernel)  # type: ignore[arg-type]
        except ValueError:
            continue
        run = partial(attend, q, k, v, mask, strategy=way)  # type: ignore[arg-type]
        repeats = measure.enough_repeats(run, BUDGET, least=3, most=20)
        yield way, work.terms, float(np.median(measure.interleave({"": run}, repeats)[""]))


def fit(found: list[tuple[str, dict[str, float], float]]) -> dict[str, float]:
    """Fit the constants, in nanoseconds; terms that were not measured keep their defaults."""
    constants = dict(costs.DEFAULTS)
    for kind in ("product", "dense", "rows", "tiles"):
        names = [term for term in costs.DEFAULTS if term.startswith(f"{kind}:")]
        rows = [(terms, seconds) for _, terms, seconds in found if f"{kind}: call" in terms]
        if not rows:
            continue
        matrix = np.array([[terms[name] / (1e9 * seconds) for name in names] for terms, seconds in rows])
        constants |= dict(zip(names, map(float, nnls(matrix, np.ones(len(rows)))[0]), strict=True))
        errors = matrix @ [constants[name] for name in names]
        low, middle, high = np.quantile(errors, [0.1, 0.5, 0.9])
        print(f"{kind}: estimate over time {middle:.2f}, from {low:.2f} to {high:.2f} in 8 of 10 cases")
    return constants


def main(quick: bool = False) -> None:
    torch.manual_seed(0)
    found = list(measurements(quick))
    constants = fit(found)
    rows = [[term, f"{costs.DEFAULTS[term]:.4g}", f"{constants[term]:.4g}"] for term in constants]
    report.table(["nanoseconds per", "default", "this machine"], rows)
    kept = None if quick else costs.save(constants)
    print("not kept: --quick" if kept is None else f"kept in {kept}")
    report.save("calibrate", {"nanoseconds": constants, "cases": len(found), "quick": quick})


if __name__ == "__main__":
    main()
