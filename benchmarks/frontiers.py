"""Pruned frontiers against walks: errors at equal entries per row, and what it takes to compute them.

Errors are those of sum_k f_k W^k, relative, in the Frobenius norm, over some rows, at the entries per row that 20
repelling walks leave: of repelling walks; of walks as in the paper (i.i.d., halting with probability 0.1), which takes
more of them; and of frontiers, with the same limit for all rows or with a tolerance. The best possible error is that of
exact rows cut to the same limit. Errors are interpolated between two numbers of walks or widths, of which one gives too
few entries and the next too many. Graphs of data sets and a mesh are read from the folders `node` and `meshes` of
--data, if they are there.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import topomask as tm
from benchmarks import graphs, report

NUM_WALKS = 20
SEEDS = range(3)
# Entries of the dense rows that errors are measured on, at most.
MAX_DENSE = 1 << 24


@dataclass(frozen=True)
class Case:
    """A graph with a modulation, and the least factors by which errors are to be lower than those of walks."""

    name: str
    make: Callable[[], tm.Graph]
    base: float
    max_length: int
    repelling: float = 4.0
    iid: float = 6.0
    resample: float | None = None

    @property
    def f(self) -> Tensor:
        """The modulation, [L + 1]."""
        return self.base ** torch.arange(self.max_length + 1, dtype=torch.float64)


@dataclass(frozen=True)
class Errors:
    """Errors of a case, and entries per row."""

    entries: float
    iid: float
    iid_walks: int
    repelling: float
    resample: float
    largest: float
    tolerance: float
    best: float
    looseness: float


def cases(quick: bool) -> Iterator[Case]:
    """Synthetic graphs, and those of data sets that are found."""
    grid, points = partial(tm.grid_graph, 20, 20), np.random.default_rng(0).random((1024, 3))
    yield Case("20 x 20 grid, 0.5^k", grid, 0.5, 10, resample=1.5)
    yield Case("20 x 20 grid, exp(-0.01 k)", grid, float(np.exp(-0.01)), 10, resample=1.5)
    if quick:
        return
    yield Case("4-NN of 1,024 points, 0.7^k", partial(tm.knn_graph, points, 4), 0.7, 6, resample=1.5)
    yield Case("Barabasi-Albert, 2,048, 0.5^k", partial(graphs.barabasi_albert, 2048), 0.5, 6, resample=1.1)
    root = Path(os.environ.get("TOPOMASK_DATA") or ".")
    mesh = root / "meshes" / "stanford-bunny.obj"
    found = [Case("bunny mesh, 0.7^k", partial(graphs.read_mesh, mesh), 0.7, 8, resample=1.5)] if mesh.is_file() else []
    sets = {
        "coauthor-physics": (0.5, 4, 4.0, 6.0),
        "tolokers": (0.5, 4, 4.0, 6.0),
        "cora": (0.7, 4, 3.5, 5.5),
        "citeseer": (0.7, 6, 2.0, 4.0),
    }
    for name, (base, max_length, repelling, iid) in sets.items():
        path = root / "node" / f"{name}.npz"
        if path.is_file():
            found.append(Case(f"{name}, {base}^k", partial(graphs.read_npz, path), base, max_length, repelling, iid))
    if len(found) < 1 + len(sets):
        print("Some graphs are left out: they are not in node/ and meshes/ of the data folder (--data).\n")
    yield from found


class Truth:
    """Some rows of the power series of a case, and errors of features of these rows."""

    def __init__(self, case: Case, graph: tm.Graph) -> None:
        count = min(graph.num_nodes, MAX_DENSE // graph.num_nodes)
        self.f = case.f
        self.nodes = np.sort(np.random.default_rng(0).permutation(graph.num_nodes)[:count])
        transposed = graph.adjacency("sym").T.tocsr()
        power = np.zeros((graph.num_nodes, count))
        power[self.nodes, np.arange(count)] = 1.0
        total = np.zeros_like(power)
        for weight in self.f.tolist():
            total += weight * power
            power = transposed @ power
        self.exact = torch.from_numpy(total.T.copy())

    def error(self, features: tm.WalkFeatures) -> float:
        """The relative error of features of the rows."""
        return float((features.to_dense(self.f)[0] - self.exact).norm() / self.exact.norm())

    def best(self, entries: int) -> float:
        """The least error with so many entries per row."""
        rest = self.exact.abs().sort(dim=1, descending=True).values[:, entries:]
        return float(rest.norm() / self.exact.norm())


def measure_errors(case: Case, graph: tm.Graph) -> Errors:
    """Errors of walks, and of frontiers with as many entries as repelling walks have."""
    truth = Truth(case, graph)
    rows: dict[str, Any] = {"start_nodes": truth.nodes}
    walk = partial(tm.sample_features, graph, max_length=case.max_length, **rows)
    expand = partial(tm.expand_features, graph, max_length=case.max_length, **rows)
    repelling = [walk(num_walks=NUM_WALKS, seed=s) for s in SEEDS]
    entries = _entries(repelling)
    caps = _bracket(lambda width: _entries([expand(width=width)]), entries)
    largest = expand(width=caps.high)

    def iid(num_walks: int) -> list[tm.WalkFeatures]:
        return [walk(num_walks=num_walks, seed=s, coupling="iid", halt_prob=0.1) for s in SEEDS]

    def resample(width: int) -> list[tm.WalkFeatures]:
        return [expand(width=width, prune="resample", seed=s) for s in SEEDS]

    def mean(found: list[tm.WalkFeatures]) -> float:
        return statistics.mean(map(truth.error, found))

    widths = _bracket(lambda width: _entries(resample(width)), entries)
    walkers = _bracket(lambda num_walks: _entries(iid(num_walks)), entries)
    return Errors(
        entries=entries,
        iid=walkers.between(lambda num_walks: mean(iid(num_walks))),
        iid_walks=walkers.high,
        repelling=mean(repelling),
        resample=widths.between(lambda width: mean(resample(width))),
        largest=caps.between(lambda width: truth.error(expand(width=width))),
        tolerance=truth.error(_within_tolerance(partial(expand, 4 * caps.high, length_weights=truth.f), entries)),
        best=caps.between(truth.best),
        looseness=float(largest.error_bound(truth.f).norm() / truth.exact.norm()) / truth.error(largest),
    )


def _within_tolerance(expand: Callable[..., tm.WalkFeatures], entries: float) -> tm.WalkFeatures:
    """Features with the least tolerance that leaves no more entries on average, by bisection."""
    low, high = 1e-6, 10.0
    with warnings.catch_warnings():
        # Rows that miss a tolerance count with all their entries.
        warnings.simplefilter("ignore")
        for _ in range(20):
            middle = math.sqrt(low * high)
            few = _entries([expand(tolerance=middle)]) <= entries
            low, high = (low, middle) if few else (middle, high)
        return expand(tolerance=high)


def _entries(found: list[tm.WalkFeatures]) -> float:
    """Mean entries per row."""
    return statistics.mean(features.num_nonzeros / features.num_rows for features in found)


@dataclass(frozen=True)
class Bracket:
    """Two widths, or numbers of walks, between which a number of entries lies, and where between them."""

    low: int
    high: int
    share: float

    def between(self, value: Callable[[int], float]) -> float:
        """What a number would be at the entries that were asked for."""
        return (1.0 - self.share) * value(self.low) + self.share * value(self.high)


def _bracket(entries: Callable[[int], float], wanted: float) -> Bracket:
    """Find the widths that give just fewer and just enough entries, by bisection."""
    low, high = 1, 2
    while entries(high) < wanted:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if entries(middle) < wanted else (low, middle)
    fewer, enough = entries(low), entries(high)
    return Bracket(low, high, min(max((wanted - fewer) / (enough - fewer), 0.0), 1.0))


def enough_entries(case: Case) -> tuple[int, float]:
    """The smallest width whose error is no more than that of repelling walks, and the entries of these."""
    graph = case.make()
    truth = Truth(case, graph)
    rows: dict[str, Any] = {"start_nodes": truth.nodes}
    walks = [tm.sample_features(graph, NUM_WALKS, case.max_length, seed=s, **rows) for s in SEEDS]
    target = statistics.mean(map(truth.error, walks))
    width = 1
    while truth.error(tm.expand_features(graph, width, case.max_length, **rows)) > target:
        width += 1
    return width, _entries(walks)


def error_bars(case: Case, found: Errors) -> list[report.Bar]:
    """What is asked of errors."""
    bars = [
        report.Bar(f"{case.name}: largest / best possible", found.largest / found.best, "<=", 1.15),
        report.Bar(f"{case.name}: repelling / largest", found.repelling / found.largest, ">=", case.repelling),
        report.Bar(f"{case.name}: i.i.d. / largest", found.iid / found.largest, ">=", case.iid),
        report.Bar(f"{case.name}: bound / error of largest", found.looseness),
    ]
    if case.resample is not None:
        ratio = found.repelling / found.resample
        bars.append(report.Bar(f"{case.name}: repelling / resample", ratio, ">=", case.resample))
    return bars


def time_against_walks(graph: tm.Graph, width: int, turns: int) -> float:
    """Processor time of frontiers over that of 20 repelling walks of length 10: the median of turns."""

    def seconds(run: Callable[[], Any]) -> float:
        start = time.process_time()
        run()
        return time.process_time() - start

    ratios = []
    for _ in range(turns + 1):
        walks = seconds(lambda: tm.sample_features(graph))
        ratios.append(seconds(lambda: tm.expand_features(graph, width)) / walks)
    # The first turn compiles.
    return statistics.median(ratios[1:])


SCRIPT = """
import json, sys, time
import topomask as tm
from benchmarks.frontiers import forget_peak, grow_graph, peak_bytes

kind, num_nodes, prune, width, max_length = sys.argv[1], int(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:])
graph = grow_graph(kind, num_nodes)
tm.expand_features(tm.grid_graph(4, 4), 2, prune=prune)
graph._tensors
before, start = forget_peak(), time.process_time()
features = tm.expand_features(graph, width, max_length, prune=prune)
print(json.dumps({
    "graph": kind, "nodes": graph.num_nodes, "prune": prune, "width": width, "length": max_length,
    "microseconds_per_node": 1e6 * (time.process_time() - start) / graph.num_nodes,
    "peak_bytes_per_node": (peak_bytes() - before) / graph.num_nodes,
    "feature_bytes_per_node": features.num_bytes / graph.num_nodes,
    "entries_per_row": features.num_nonzeros / graph.num_nodes,
}))
"""


def peak_bytes() -> float:
    """The largest memory of this process; NaN where the system does not tell."""
    status = Path("/proc/self/status")
    found = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")] if status.is_file() else []
    return 1024.0 * int(found[0].split()[1]) if found else float("nan")


def forget_peak() -> float:
    """Let the largest memory start anew from what is held now, and return that."""
    reset = Path("/proc/self/clear_refs")
    if reset.is_file():
        reset.write_text("5")
    return peak_bytes()


def grow_graph(kind: str, num_nodes: int) -> tm.Graph:
    """A grid, a star or a graph with hubs."""
    if kind == "grid":
        return tm.grid_graph(128, num_nodes // 128)
    if kind == "star":
        return graphs.star(num_nodes - 1)
    # Every end of an edge is an end of an earlier one, drawn uniformly; as in Batagelj and Brandes (2005).
    rng = np.random.default_rng(0)
    source = np.repeat(np.arange(num_nodes), 3)
    slot = (rng.random(len(source)) * (2 * np.arange(len(source)) + 1)).astype(np.int64)
    while (unknown := (slot % 2 == 1)).any():
        slot[unknown] = slot[slot[unknown] // 2]
    ends = np.stack([source, source[slot // 2]])
    return tm.Graph.from_edges(ends[:, ends[0] != ends[1]], num_nodes)


def measure_growth(quick: bool) -> list[dict[str, Any]]:
    """Time and memory per node, each in a process of its own."""
    wanted = [("grid", 1 << 13, "largest", 12, 10), ("star", 1 << 12, "largest", 12, 10)]
    if not quick:
        wanted = [("grid", 1 << k, "largest", 12, 10) for k in (15, 20)]
        for prune in ("largest", "resample"):
            wanted += [("star", (1 << 18) + 1, prune, 12, 10), ("Barabasi-Albert", 10**6, prune, 16, 6)]
    found = []
    for arguments in wanted:
        command = [sys.executable, "-c", SCRIPT, *map(str, arguments)]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(json.loads(run.stdout))
    return found


def main(quick: bool = False) -> None:
    found, bars = {}, []
    for case in cases(quick):
        found[case.name] = measure_errors(case, case.make())
        bars += error_bars(case, found[case.name])
    rows = [
        [
            name,
            f"{each.entries:.0f}",
            f"{each.iid:.4f} ({each.iid_walks} walks)",
            f"{each.repelling:.4f}",
            f"{each.resample:.4f}",
            f"{each.largest:.4f}",
            f"{each.tolerance:.4f}",
            f"{each.best:.4f}",
        ]
        for name, each in found.items()
    ]
    report.table(
        [
            "graph, f",
            "entries",
            "i.i.d., halt 0.1",
            "repelling",
            "resample",
            "largest",
            "by tolerance",
            "best possible",
        ],
        rows,
    )
    width, entries = enough_entries(next(cases(quick=True)))
    bars.append(report.Bar(f"entries of largest for the error of repelling walks ({entries:.0f})", width, "<=", 14))
    grid = tm.grid_graph(32, 64) if quick else tm.grid_graph(128, 256)
    ratio = time_against_walks(grid, width, 2 if quick else 7)
    bars.append(report.Bar(f"{grid.num_nodes:,}-node grid: time of width {width} / walks", ratio, "<=", 3))
    growth = measure_growth(quick)
    _show_growth(growth)
    if not quick:
        flat = growth[1]["microseconds_per_node"] / growth[0]["microseconds_per_node"]
        bars.append(report.Bar("grid: time per node of 2^20 nodes / 2^15 nodes", flat, "<=", 1.5))
    shown = report.bars(bars, quick=quick)
    errors = {name: asdict(each) for name, each in found.items()}
    report.save("frontiers", {"errors": errors, "growth": growth, "bars": shown, "quick": quick})


def _show_growth(growth: list[dict[str, Any]]) -> None:
    header = ["graph", "nodes", "prune", "width", "length", "us / node", "peak B/node", "features B/node", "entries"]
    rows = [
        [
            each["graph"],
            f"{each['nodes']:,}",
            each["prune"],
            str(each["width"]),
            str(each["length"]),
            f"{each['microseconds_per_node']:.1f}",
            f"{each['peak_bytes_per_node']:,.0f}",
            f"{each['feature_bytes_per_node']:,.0f}",
            f"{each['entries_per_row']:.1f}",
        ]
        for each in growth
    ]
    report.table(header, rows)


if __name__ == "__main__":
    main()
