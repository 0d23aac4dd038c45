"""Sampling, attention and its gradients on grids of 2^15 to 2^20 tokens: time per token, and peak memory.

20 repelling walks of length 10, symmetric, 32 features, 32 values, all settings at their defaults. Each size runs in
its own process.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import torch

import topomask as tm
from benchmarks import report
from benchmarks.processes import ProcessError, limit_memory, peak_bytes, run_fresh

WIDTH = 32
PARTS = ("sample", "forward", "backward", "all")
EXPONENTS = (15, 17, 20)
# Repeat steps up to this number of times, while they take less than this time in total.
MOST_STEPS, MOST_SECONDS = 5, 30.0
# A process that needs more fails, instead of exhausting the machine.
MOST_BYTES = 16 * 10**9


def measure_size(exponent: int) -> dict[str, object]:
    """Seconds of every part of several steps, after one step on a small grid to compile the kernels."""
    limit_memory(MOST_BYTES)
    _step(tm.grid_graph(16, 64), seed=0)
    rows = 2 ** (exponent // 2)
    graph = tm.grid_graph(rows, 2**exponent // rows)
    steps = [_step(graph, seed=0)]
    while len(steps) < MOST_STEPS and sum(step["all"] for step in steps) < MOST_SECONDS:
        steps.append(_step(graph, seed=len(steps)))
    return {"exponent": exponent, "seconds": steps, "peak_bytes": peak_bytes()}


def _step(graph: tm.Graph, seed: int) -> dict[str, float]:
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 1, graph.num_nodes, WIDTH).unbind())
    start = time.perf_counter()
    mask = tm.WalkMask(graph, seed=seed)
    sampled = time.perf_counter()
    out = tm.masked_attention(q, k, v, mask)
    attended = time.perf_counter()
    out.sum().backward()
    return {
        "sample": sampled - start,
        "forward": attended - sampled,
        "backward": time.perf_counter() - attended,
        "all": time.perf_counter() - start,
    }


def main(quick: bool = False) -> None:
    found, failures = {}, {}
    exponents = (10, 12) if quick else EXPONENTS
    for exponent in exponents:
        try:
            found[exponent] = run_fresh("benchmarks.growth", str(exponent))
        except ProcessError as error:
            failures[exponent] = str(error)
        print(f"2^{exponent} tokens: {failures.get(exponent, 'measured')}", flush=True)
    medians = {e: {part: _median(result, part) for part in PARTS} for e, result in found.items()}
    rows = [
        [
            f"2^{exponent}",
            *(f"{1e6 * median[part] / 2**exponent:.2f}" for part in PARTS),
            f"{found[exponent]['peak_bytes'] / 1e9:.2f}",
            str(len(found[exponent]["seconds"])),
        ]
        for exponent, median in medians.items()
    ]
    report.table(["tokens", *(f"{part}, us per token" for part in PARTS), "peak GB", "steps"], rows)
    small, large = exponents[0], exponents[-1]
    if small in found and large in found:
        growth = medians[large]["all"] / medians[small]["all"] / 2 ** (large - small)
        lines = [
            report.Bar(f"time per token, 2^{large} / 2^{small} tokens", growth, "<=", 1.3),
            report.Bar(f"peak memory at 2^{large} tokens, GB", found[large]["peak_bytes"] / 1e9, "<=", 8.0),
        ]
    else:
        shown = f"did not run within {MOST_BYTES / 1e9:.0f} GB"
        lines = [report.Bar(f"peak memory at 2^{large} tokens, GB", MOST_BYTES / 1e9, "<=", 8.0, shown)]
    bars = report.bars(lines, quick=quick)
    report.save("growth", {"sizes": list(found.values()), "failures": failures, "bars": bars, "quick": quick})


def _median(result: dict[str, Any], part: str) -> float:
    return statistics.median(step[part] for step in result["seconds"])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure_size(int(sys.argv[1]))))
    else:
        main()
