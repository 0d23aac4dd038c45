"""Does "auto" choose the fastest strategy? All available ones are timed on many graphs, walks and widths.

Forward, one head, f fixed. "auto" runs the code of the strategy that it picks, so the report is the time of that
strategy over the time of the best. A strategy is skipped, with a note, if its estimate is both over 20 times the lowest
and over 2 s, or if dense weights would not fit. All results must agree.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal

import torch

import topomask as tm
from benchmarks import graphs, measure, report

WALKS = ((4, 3), (20, 10))
WIDTHS = (8, 64)
MOST_SECONDS, MOST_TIMES = 2.0, 20.0
# About 5 GB with a few copies of the weights.
MOST_DENSE_ENTRIES = 1 << 28
# Stop timing a strategy that is this much slower, unless "auto" picks it; at once if it takes this many seconds.
HOPELESS, SLOW = 3.0, 0.5
# Seconds for the repeats of one case.
BUDGET = 1.0

Kernel = Literal["linear", "softmax"]
Way = Literal["pairs", "product", "dense"]
WAYS: dict[Kernel, tuple[Way, ...]] = {
    "linear": ("pairs", "product", "dense"),
    "softmax": ("pairs", "dense"),
}


@dataclass
class Case:
    """One graph, one kind of walks, one width."""

    graph: str
    walks: str
    width: int
    kernel: Kernel
    auto: str = ""
    seconds: dict[str, list[float]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def best(self) -> str:
        """The strategy with the lowest median."""
        return min(self.seconds, key=lambda way: statistics.median(self.seconds[way]))

    @property
    def ratio(self) -> measure.Ratio:
        """Time of the strategy that "auto" picks over that of the best."""
        return measure.ratio(self.seconds[self.auto], self.seconds[self.best])


def main(quick: bool = False) -> None:
    torch.manual_seed(0)
    cases = []
    start = time.perf_counter()
    for case in _run_all(quick):
        cases.append(case)
        times = ", ".join(f"{way} {1e3 * statistics.median(t):.3g} ms" for way, t in case.seconds.items())
        skipped = "".join(f"; {way} skipped: {reason}" for way, reason in case.skipped.items())
        print(
            f"[{time.perf_counter() - start:4.0f} s] {case.graph}, {case.walks}, width {case.width}, {case.kernel}: "
            f"auto {case.auto}, {case.ratio.value:.2f} x best; {times}{skipped}",
            flush=True,
        )
    _report(cases, quick)


def _run_all(quick: bool) -> Iterator[Case]:
    for name, make in (graphs.synthetic(quick) | ({} if quick else graphs.data_sets())).items():
        graph = make()
        for num_walks, length in WALKS:
            for symmetric in (True, False):
                mask = tm.WalkMask(graph, num_walks=num_walks, max_length=length, symmetric=symmetric, seed=0)
                walks = f"{num_walks} x {length} {'symmetric' if symmetric else 'asymmetric'}"
                for width in WIDTHS:
                    yield run_case(Case(name, walks, width, "linear"), mask)
                if name.startswith("grid") or not symmetric:
                    yield run_case(Case(name, walks, WIDTHS[-1], "softmax"), mask)


def run_case(case: Case, mask: tm.Mask) -> Case:
    """Check that the strategies of a case agree, and time them side by side."""
    q, k, v = torch.randn(3, 1, 1, mask.on().num_queries, case.width)
    attend = tm.masked_attention if case.kernel == "linear" else tm.masked_softmax_attention
    with torch.no_grad():
        runs: dict[str, measure.Run] = {
            way: partial(attend, q, k, v, mask, strategy=way) for way in _open_ways(case, mask)
        }
        answer = runs[case.auto]()
        first = {case.auto: measure.seconds(runs[case.auto])}
        for way, run in runs.items():
            if way != case.auto:
                begin = time.perf_counter()
                measure.check_same(f"{case.graph}, {case.walks}, {way}", run(), answer)
                first[way] = time.perf_counter() - begin
        # The first run over pairs also finds and caches them; other strategies have no such first cost.
        limit = max(SLOW, HOPELESS * first[case.auto])
        again = {way: run for way, run in runs.items() if way == "pairs" or first[way] < limit}
        case.seconds = {way: [once] for way, once in first.items()} | measure.interleave(again, 1, warm_ups=0)
        fastest = min(times[0] for times in case.seconds.values())
        close = {w: run for w, run in again.items() if w == case.auto or case.seconds[w][0] < HOPELESS * fastest}
        if len(close) > 1:
            repeats = int(BUDGET / sum(case.seconds[way][0] for way in close))
            more = measure.interleave(close, max(1, min(200, repeats)), warm_ups=0)
            case.seconds |= {way: case.seconds[way] + times for way, times in more.items()}
    return case


def _open_ways(case: Case, mask: tm.Mask) -> Iterator[Way]:
    """The strategies to time; the case records why others are skipped."""
    operator = mask.on()
    plan = partial(tm.plan_attention, operator, case.width, case.width, kernel=case.kernel)
    chosen = plan()
    case.auto, least = chosen.strategy, min(chosen.seconds.values())
    for way in WAYS[case.kernel]:
        try:
            estimate = plan(strategy=way).seconds[way]
        except ValueError:
            case.skipped[way] = "refused by the plan"
            continue
        if estimate > MOST_TIMES * least and estimate > MOST_SECONDS:
            case.skipped[way] = f"estimated at {estimate:.3g} s, {estimate / least:.0f} times {case.auto}"
        elif way == "dense" and operator.num_queries * operator.num_keys > MOST_DENSE_ENTRIES:
            case.skipped[way] = "the weights would not fit"
        else:
            yield way


def _report(cases: list[Case], quick: bool) -> None:
    cases = sorted(cases, key=lambda case: -case.ratio.value)
    rows = []
    for case in cases:
        times = [
            f"{1e3 * statistics.median(case.seconds[w]):.3g}" if w in case.seconds else "-" for w in WAYS["linear"]
        ]
        rows.append([case.graph, case.walks, str(case.width), case.kernel, *times, case.auto, str(case.ratio)])
    report.table(["graph", "walks", "width", "kernel", "pairs ms", "product", "dense", "auto", "auto / best"], rows)
    wrong = sum(case.auto != case.best for case in cases)
    bars = report.bars(
        [
            report.Bar("the worst auto / best", cases[0].ratio.value, "<=", 1.3, str(cases[0].ratio)),
            report.Bar(f"cases of {len(cases)} in which auto is not the best", wrong),
        ],
        quick=quick,
    )
    found: list[dict[str, Any]] = [
        asdict(case) | {"best": case.best, "auto_over_best": case.ratio.value} for case in cases
    ]
    report.save("strategies", {"cases": found, "bars": bars, "quick": quick})


if __name__ == "__main__":
    main()
