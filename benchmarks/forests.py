"""Masks on trees: how the time of exponentials grows, and a table against the dense product.

Exponentials: forward attention with 32 features and 32 values on random recursive trees of 2^14 to 2^20 nodes, each
size in its own process. Table: ``mask @ x`` with as many columns, 32 x 33, on 2^16 nodes of a random recursive tree, a
star and a path, against the dense product, which is extrapolated by N^2 from 2^13 nodes.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import torch

import topomask as tm
from benchmarks import graphs, measure, report
from benchmarks.processes import limit_memory, peak_bytes, run_fresh

WIDTH = 32
COLUMNS = WIDTH * (WIDTH + 1)
EXPONENTS = (14, 16, 18, 20)
TABLE_EXPONENT, DENSE_EXPONENT = 16, 13
MOST_BYTES = 16 * 10**9
STEPS = 3


def measure_size(exponent: int) -> dict[str, object]:
    """Seconds of several forward passes on one tree, after one on a small tree to compile the kernels."""
    limit_memory(MOST_BYTES)
    torch.manual_seed(0)
    _attend(tm.ForestMask(graphs.random_tree(64)))()
    begin = time.perf_counter()
    mask = tm.ForestMask(graphs.random_tree(2**exponent))
    built = time.perf_counter() - begin
    run = _attend(mask)
    run()
    seconds = [measure.seconds(run) for _ in range(STEPS)]
    return {"exponent": exponent, "built": built, "seconds": seconds, "peak_bytes": peak_bytes()}


def _attend(mask: tm.Mask) -> Callable[[], object]:
    q, k, v = torch.randn(3, 1, 1, mask.on().num_keys, WIDTH)

    def run() -> None:
        with torch.no_grad():
            tm.masked_attention(q, k, v, mask, strategy="product")

    return run


def main(quick: bool = False) -> None:
    torch.manual_seed(0)
    exponents = (8, 10) if quick else EXPONENTS
    found = {exponent: run_fresh("benchmarks.forests", str(exponent)) for exponent in exponents}
    medians = {exponent: statistics.median(result["seconds"]) for exponent, result in found.items()}
    report.table(
        ["exponential, nodes", "ms", "us per node", "built in s", "peak GB"],
        [
            [
                f"2^{e}",
                f"{1e3 * medians[e]:.3g}",
                f"{1e6 * medians[e] / 2**e:.3g}",
                f"{found[e]['built']:.2g}",
                f"{found[e]['peak_bytes'] / 1e9:.2f}",
            ]
            for e in exponents
        ],
    )
    low, high = exponents[0], exponents[-1]
    growth = medians[high] / medians[low] / 2 ** (high - low)
    bars = [report.Bar(f"exponential, time per node, 2^{high} / 2^{low}", growth)]
    tables = time_tables(8 if quick else TABLE_EXPONENT, 7 if quick else DENSE_EXPONENT)
    for name, ratio in tables.items():
        wanted = (">=", 20.0) if name == "random recursive tree" else ("", float("nan"))
        bars.append(report.Bar(f"table on a {name}: dense / ours", ratio.value, *wanted, str(ratio)))  # type: ignore[arg-type]
    shown = report.bars(bars, quick=quick)
    report.save("forests", {"sizes": list(found.values()), "bars": shown, "quick": quick})


def time_tables(exponent: int, dense_exponent: int) -> dict[str, measure.Ratio]:
    """Ratio of the extrapolated dense product to a product with the mask."""
    size, small = 2**exponent, 2**dense_exponent
    trees = {
        "random recursive tree": graphs.random_tree(size),
        "star": graphs.star(size - 1),
        "path": tm.path_graph(size),
    }
    masks = {name: tm.ForestMask(tree, table=_table(size)) for name, tree in trees.items()}
    x, small_x = torch.randn(1, size, COLUMNS), torch.randn(small, COLUMNS)
    with torch.no_grad():
        exact = tm.ForestMask(graphs.random_tree(small), table=_table(small))
        dense = exact.to_dense()[0]
        measure.check_same("table", (exact @ small_x[None])[0], dense @ small_x)
        runs: dict[str, measure.Run] = {name: partial(mask, x) for name, mask in masks.items() if name != "path"}
        runs["dense"] = partial(torch.matmul, dense, small_x)
        times = measure.interleave(runs, STEPS)
        # A path takes long, so run it once.
        times["path"] = [measure.seconds(partial(masks["path"], x))] * STEPS
    report.table(measure.TIME_HEADER, measure.time_rows(times))
    whole = [seconds * 4.0 ** (exponent - dense_exponent) for seconds in times["dense"]]
    return {name: measure.ratio(whole, times[name]) for name in masks}


def _table(size: int) -> torch.Tensor:
    return 1.0 / (1.0 + torch.arange(size))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure_size(int(sys.argv[1]))))
    else:
        main()
