"""Every mask from 64 to 4,096 tokens: does "auto" choose the fastest strategy, and does memory grow as promised?

Forward linear attention with 32 features, 32 values, one head and fixed parameters. Memory is the peak that torch holds
during a forward pass by products with the mask, beyond the inputs, per token.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import numpy as np
import torch

import topomask as tm
from benchmarks import graphs, report
from benchmarks.memory import peak_extra_bytes
from benchmarks.strategies import WAYS, Case, run_case
from topomask.masks.registry import ON_GRAPHS
from topomask.pictures.named_graphs import load_graph
from topomask.pictures.named_masks import build_mask

WIDTH = 32
SIDES = (8, 16, 32, 64)
# Sides of the grids for comparing memory.
MEMORY_SIDES = (64, 128)
# Cases besides one of every mask on the graphs of the registry.
OTHERS: dict[str, Callable[[int], tm.Mask]] = {
    "walk, asymmetric": lambda side: tm.WalkMask(tm.grid_graph(side, side), symmetric=False, seed=0),
    "toeplitz, causal": lambda side: tm.ToeplitzMask(side * side, causal=True),
    "forest, table": lambda side: tm.ForestMask(graphs.random_tree(side * side), table=0.5 ** torch.arange(40)),
    "low-rank": lambda side: tm.LowRankMask(torch.rand(side * side, 16)),
    "sum": lambda side: tm.WalkMask(tm.grid_graph(side, side), seed=0) + tm.ToeplitzMask((side, side)),
    "kronecker": lambda side: tm.KroneckerMask(
        tm.ToeplitzMask(side, causal=True), tm.WalkMask(tm.path_graph(side), seed=0)
    ),
    "prefix": lambda side: tm.PrefixMask(tm.ToeplitzMask((side, side))),
}


def _on_example(name: str, side: int) -> tm.Mask:
    """A mask of the registry on a graph of its kind with about side x side nodes."""
    size = {"grid": f"{side}x{side}", "hypercube": str(int(np.log2(side * side)))}
    kind = ON_GRAPHS[name].example
    return build_mask(name, load_graph(f"{kind}:{size.get(kind, side * side)}"), {})


MASKS = {name: partial(_on_example, name) for name in ON_GRAPHS} | OTHERS


def main(quick: bool = False) -> None:
    torch.manual_seed(0)
    cases, start = [], time.perf_counter()
    for name, make in MASKS.items():
        for side in (4, 8) if quick else SIDES:
            case = run_case(Case(f"{side * side}", name, WIDTH, "linear"), make(side))
            cases.append(case)
            times = ", ".join(f"{way} {1e3 * statistics.median(t):.3g} ms" for way, t in case.seconds.items())
            print(
                f"[{time.perf_counter() - start:4.0f} s] {name}, {case.graph} tokens: auto {case.auto}, "
                f"{case.ratio.value:.2f} x best; {times}",
                flush=True,
            )
    _report_times(cases)
    memory = _measure_memory((4, 8) if quick else MEMORY_SIDES)
    worst = max(cases, key=lambda case: case.ratio.value)
    steepest = max(memory, key=lambda name: memory[name][1] / memory[name][0])
    growth = memory[steepest][1] / memory[steepest][0]
    bars = report.bars(
        [
            report.Bar(
                f"the worst auto / best ({worst.walks}, {worst.graph} tokens)",
                worst.ratio.value,
                "<=",
                1.3,
                str(worst.ratio),
            ),
            report.Bar(f"the largest growth of memory per token ({steepest})", growth, "<=", 1.5),
        ],
        quick=quick,
    )
    found = [asdict(case) | {"best": case.best, "auto_over_best": case.ratio.value} for case in cases]
    report.save("mask_costs", {"cases": found, "bytes_per_token": memory, "bars": bars, "quick": quick})


def _report_times(cases: list[Case]) -> None:
    rows = []
    for case in cases:
        times = [
            f"{1e3 * statistics.median(case.seconds[w]):.3g}" if w in case.seconds else "-" for w in WAYS["linear"]
        ]
        rows.append([case.walks, case.graph, *times, case.auto, str(case.ratio)])
    report.table(["mask", "tokens", "pairs ms", "product", "dense", "auto", "auto / best"], rows)


def _measure_memory(sides: tuple[int, int]) -> dict[str, list[float]]:
    """Bytes per token of a forward pass by products, on a small and a large grid."""
    found: dict[str, list[float]] = {}
    for name, make in MASKS.items():
        # These compute weights for all pairs, as documented.
        if name in ON_GRAPHS and ON_GRAPHS[name].product == "O(N^2)":
            continue
        found[name] = []
        for side in sides:
            mask = make(side)
            num_tokens = mask.on().num_keys
            q, k, v = torch.randn(3, 1, 1, num_tokens, WIDTH)

            attend = partial(tm.masked_attention, q, k, v, mask, strategy="product")
            with torch.no_grad():
                attend()
                found[name].append(peak_extra_bytes(attend) / num_tokens)
    header = ["mask", *(f"KB per token, {side * side:,} tokens" for side in sides), "ratio"]
    rows = [[name, *(f"{x / 1e3:.3g}" for x in pair), f"{pair[1] / pair[0]:.3g}"] for name, pair in found.items()]
    report.table(header, rows)
    return found


if __name__ == "__main__":
    main()
