"""Toeplitz masks on grids of 32 x 32 to 512 x 512: how the time grows, and the crossover with dense attention.

32 features, 32 values, one head, a free parameter per offset, forward. Dense attention multiplies all scores by all
entries of the mask. If that would not fit in memory, it is extrapolated by N^2 from the largest grid that did.
"""

from __future__ import annotations

import math
import statistics

import torch

import topomask as tm
from benchmarks import measure, report

WIDTH = 32
SIDES = (16, 32, 64, 128, 256, 512)
# The dense weights of larger grids would take more than 2 GB.
LARGEST_DENSE = 128
BUDGET = 4.0


def main(quick: bool = False) -> None:
    torch.manual_seed(0)
    times: dict[int, dict[str, list[float]]] = {}
    for side in (8, 16) if quick else SIDES:
        times[side] = time_side(side)
        print(f"{side} x {side}: {_shown(times[side])}", flush=True)
    fft = {side: statistics.median(found["product"]) for side, found in times.items()}
    dense = {side: statistics.median(found["dense"]) for side, found in times.items() if "dense" in found}
    largest = max(dense)
    whole = {side: dense.get(side, dense[largest] * (side / largest) ** 4) for side in times}
    report.table(
        ["grid", "FFT ms", "ns per N log2 N", "dense ms", "dense / FFT", "auto takes"],
        [
            [
                f"{side} x {side}",
                f"{1e3 * fft[side]:.3g}",
                f"{1e9 * fft[side] / _work(side):.3g}",
                f"{1e3 * whole[side]:.3g}" + ("" if side in dense else " (extrapolated)"),
                f"{whole[side] / fft[side]:.3g}",
                tm.plan_attention(tm.ToeplitzMask((side, side)), WIDTH, WIDTH).strategy,
            ]
            for side in times
        ],
    )
    crossing = crossover([side * side for side in times], [whole[side] / fft[side] for side in times])
    small, large = (8, 16) if quick else (32, 512)
    growth = fft[large] / _work(large) / (fft[small] / _work(small))
    at = 16 if quick else 256
    found = [
        report.Bar(f"dense / FFT at {at} x {at}", whole[at] / fft[at], ">=", 1.0),
        report.Bar("tokens from which on FFT is ahead", crossing),
        report.Bar(f"time per N log2 N, {large} x {large} / {small} x {small}", growth),
    ]
    report.save("grids", {"seconds": times, "bars": report.bars(found, quick=quick), "quick": quick})


def time_side(side: int) -> dict[str, list[float]]:
    """Check that all methods agree on one grid, and return their seconds."""
    mask = tm.ToeplitzMask((side, side))
    q, k, v = torch.randn(3, 1, 1, side * side, WIDTH)
    ways = ("product", "dense") if side <= LARGEST_DENSE else ("product",)
    runs = {way: lambda way=way: tm.masked_attention(q, k, v, mask, strategy=way) for way in ways}
    with torch.no_grad():
        answers = {way: run() for way, run in runs.items()}
        for way in ways[1:]:
            measure.check_same(f"{side} x {side}, {way}", answers[way], answers["product"])
        slowest = max(measure.seconds(run) for run in runs.values())
        return measure.interleave(runs, max(3, min(50, int(BUDGET / slowest))), warm_ups=0)


def crossover(sizes: list[int], ratios: list[float]) -> float:
    """Where the ratio passes 1 for good, by interpolating logarithms; NaN if nowhere."""
    for k in range(len(sizes) - 1, 0, -1):
        if ratios[k] >= 1.0 > ratios[k - 1]:
            low, high = math.log(ratios[k - 1]), math.log(ratios[k])
            share = -low / (high - low)
            return math.exp(math.log(sizes[k - 1]) * (1.0 - share) + math.log(sizes[k]) * share)
    return float(sizes[0]) if ratios[0] >= 1.0 else math.nan


def _work(side: int) -> float:
    return side * side * math.log2(side * side)


def _shown(times: dict[str, list[float]]) -> str:
    return ", ".join(f"{way} {1e3 * statistics.median(found):.3g} ms" for way, found in times.items())


if __name__ == "__main__":
    main()
