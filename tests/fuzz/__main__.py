"""The long form: ``python -m tests.fuzz --cases 50000 --seed 0``; every case follows from its seed and index."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

# The tests import helpers as the tests' folder has them, whatever this is run as.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz.runner import Report
from fuzz.work import Task, run, start

_PER_TASK = 20


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=50_000, help="how many cases to run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="index of the first case")
    parser.add_argument("--index", type=int, help="run this case alone")
    parser.add_argument("--mask", help="only this mask")
    parser.add_argument("--graph", help="only this kind of graph")
    parser.add_argument("--backend", choices=("auto", "reference"), default="auto")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--threads", type=int, default=1, help="threads of torch and of kernels in every process")
    return parser.parse_args()


def _reports(tasks: list[Task], options: argparse.Namespace) -> Iterator[Report]:
    if options.processes == 1 or len(tasks) == 1:
        start(options.backend, options.threads)
        yield from map(run, tasks)
        return
    context, settings = multiprocessing.get_context("spawn"), (options.backend, options.threads)
    with ProcessPoolExecutor(options.processes, context, start, settings) as pool:
        pending = {pool.submit(run, task): task for task in tasks}
        for future in as_completed(pending):
            error = future.exception()
            if isinstance(error, BrokenProcessPool):
                # One of the tasks at work then has ended the process; the others never came.
                yield Report(failures=[(pending[future][1], "a process died in these cases, or before them")])
                continue
            yield future.result()


def _watched(reports: Iterable[Report], count: int, command: str) -> Iterator[Report]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("cases"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[found]} failures"),
    )
    with Progress(*columns) as progress:
        bar, found = progress.add_task("cases", total=count, found=0), 0
        for report in reports:
            found += len(report.failures)
            for index, text in report.failures:
                # Now, so that a run that is broken off has shown what it found.
                progress.console.print(
                    f"{command.format(index)}\n    {text}\n", markup=False, highlight=False, soft_wrap=True
                )
            progress.update(bar, advance=report.cases, found=found)
            yield report


def main() -> int:
    """Run, print counts and a command for every failure; 1 if there is any."""
    options = _parse()
    first = options.start if options.index is None else options.index
    last = first + (options.cases if options.index is None else 1)
    tasks = [
        (options.seed, start, min(start + _PER_TASK, last), options.mask, options.graph)
        for start in range(first, last, _PER_TASK)
    ]
    total, began = Report(), time.perf_counter()
    for report in _watched(_reports(tasks, options), last - first, _command(options)):
        total.add(report)
    print_report(total, options, time.perf_counter() - began)
    return 1 if total.failures else 0


def print_report(total: Report, options: argparse.Namespace, seconds: float) -> None:
    """Counts of what was run, refused and found."""
    print(
        f"{total.cases:,} cases, {total.calls:,} calls compared, {total.gradients:,} with gradients, "
        f"{sum(total.refused.values()):,} refused, {len(total.failures):,} failures, {seconds:,.0f} s, "
        f"backend {options.backend}; {total.skipped:,} of {total.queries:,} queries left out: rounding decides them"
    )
    for what, counter in [*total.counts.items(), ("refused", total.refused)]:
        print(f"{what}: " + ", ".join(f"{name} {count:,}" for name, count in counter.most_common()))


def _command(options: argparse.Namespace) -> str:
    """How to run one case again, but for its index."""
    extra = "".join(f" --{name} {value}" for name in ("mask", "graph") if (value := getattr(options, name)))
    extra += f" --backend {options.backend}" if options.backend != "auto" else ""
    return f"python -m tests.fuzz --seed {options.seed} --index {{}}{extra}"


if __name__ == "__main__":
    sys.exit(main())
