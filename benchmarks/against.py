"""Compare the speed of this checkout with another commit, side by side.

``python -m benchmarks.against COMMIT`` extracts the commit, starts one process per version, and times every case of
``against_cases.py`` in turns. Cases whose results differ are not reported.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import measure, report

CHECKOUT = Path(__file__).parents[1]
# Ratios above this are marked.
SLOWER = 1.10
# Largest allowed difference of two results, relative to the sum of absolute values.
TOLERANCE = 1e-3
# Short cases are repeated until one measurement takes about this many seconds.
SHORTEST = 0.01
# Pause before every measurement, in seconds: idle threads of the other process spin before they sleep.
PAUSE = 0.02


class WorkerError(RuntimeError):
    """A version cannot run a case; the message is the error that it raised."""


class Worker:
    """A process that times cases with one version of topomask.

    Args:
        source: The folder that contains ``topomask``.
        threads: Number of torch threads; 0 for the default.
    """

    def __init__(self, source: Path, threads: int) -> None:
        path = os.pathsep.join([str(source), str(CHECKOUT)])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.against_cases", *([str(threads)] if threads else [])],
            cwd=CHECKOUT,
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started = self._reply()
        found = Path(started["topomask"])
        self.threads = int(started["threads"])
        if not found.is_relative_to(source.resolve()):
            self.close()
            raise RuntimeError(f"The worker must import topomask from {source}, but imported it from {found}.")

    def _ask(self, kind: str, argument: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([kind, argument]) + "\n")
        self.process.stdin.flush()
        return self._reply()

    def _reply(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"A worker exited with status {self.process.wait()}; its errors are above.")
        reply = dict(json.loads(line))
        if "error" in reply:
            raise WorkerError(reply["error"])
        return reply

    def prepare(self, case: str) -> list[list[float]]:
        """Build a case and run it once; return the sums and absolute sums of its output tensors."""
        return list(self._ask("prepare", case)["sums"])

    def seconds(self, calls: int) -> float:
        """Mean seconds over several calls of the prepared case."""
        return float(self._ask("time", calls)["seconds"])

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@dataclass(frozen=True)
class Comparison:
    """Seconds of one case in both versions, one per turn; or why there are none."""

    case: str
    new: Sequence[float] = ()
    old: Sequence[float] = ()
    problem: str = ""

    @property
    def ratio(self) -> measure.Ratio:
        """Time of the new version over that of the old."""
        return measure.ratio(self.new, self.old)

    @property
    def is_slower(self) -> bool:
        """Whether the new version is slower by more than the tolerance."""
        return not self.problem and self.ratio.value > SLOWER

    def __str__(self) -> str:
        if self.problem:
            return f"{self.case}: not compared. {self.problem}"
        new, old = (1e3 * statistics.median(times) for times in (self.new, self.old))
        mark = "  SLOWER" if self.is_slower else ""
        return f"{self.case}: new {new:.3g} ms, old {old:.3g} ms, new / old {self.ratio}{mark}"


def compare(case: str, new: Worker, old: Worker, repeats: int, warm_ups: int) -> Comparison:
    """Time a case in turns: new, old, new, old."""
    answers = {}
    for name, worker in (("new", new), ("old", old)):
        try:
            answers[name] = worker.prepare(case)
        except WorkerError as error:
            return Comparison(case, problem=f"The {name} version raises {error}")
    if difference := differ(answers["new"], answers["old"]):
        return Comparison(case, problem=f"The answers differ: {difference}")
    try:
        # The last warm-up call shows how long a call takes.
        slowest = [max(new.seconds(1), old.seconds(1)) for _ in range(max(1, warm_ups))][-1]
        calls = max(1, math.ceil(SHORTEST / slowest))
        times: dict[Worker, list[float]] = {new: [], old: []}
        for _ in range(repeats):
            for worker, found in times.items():
                time.sleep(PAUSE)
                found.append(worker.seconds(calls))
    except WorkerError as error:
        return Comparison(case, problem=f"A repeated call raises {error}")
    return Comparison(case, times[new], times[old])


def differ(new: Sequence[Sequence[float]], old: Sequence[Sequence[float]]) -> str:
    """Describe where sums and absolute sums of tensors differ too much; empty if nowhere."""
    if len(new) != len(old):
        return f"{len(new)} and {len(old)} tensors."
    for place, (ours, theirs) in enumerate(zip(new, old, strict=True)):
        scale = max(ours[1], theirs[1])
        # Not "greater than", which is false for NaN.
        if not all(abs(a - b) <= TOLERANCE * scale for a, b in zip(ours, theirs, strict=True)):
            return (
                f"tensor {place} has sum {ours[0]:.6g} and absolute sum {ours[1]:.6g}, "
                f"but {theirs[0]:.6g} and {theirs[1]:.6g} in the old version."
            )
    return ""


def full_name(commit: str) -> str:
    """The hash of a commit."""
    done = subprocess.run(
        ["git", "rev-parse", "--verify", f"{commit}^{{commit}}"], cwd=CHECKOUT, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"There is no commit {commit!r} in {CHECKOUT}. Run `git log --oneline` to list commits.")
    return done.stdout.strip()


@contextlib.contextmanager
def extracted(commit: str, folder: Path | None) -> Iterator[Path]:
    """Extract the source folder of a commit: below ``folder`` if given, else in a temporary folder."""
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="topomask-")))
        target = folder.resolve() / commit
        if not target.is_dir():
            # An incomplete archive must not look like a complete one.
            part = target.with_suffix(".part")
            part.mkdir(parents=True, exist_ok=True)
            archive = ["git", "archive", "--format=tar", commit, "src"]
            with (
                subprocess.Popen(archive, cwd=CHECKOUT, stdout=subprocess.PIPE) as git,
                tarfile.open(fileobj=git.stdout, mode="r|") as files,
            ):
                files.extractall(part, filter="data")
            if git.returncode:
                raise SystemExit(f"git archive failed for {commit} with exit code {git.returncode}.")
            part.rename(target)
        yield target / "src"


def case_names(prefixes: Sequence[str]) -> list[str]:
    """Cases that start with one of the prefixes, or all if there are none."""
    from benchmarks.against_cases import CASES

    unknown = [prefix for prefix in prefixes if not any(name.startswith(prefix) for name in CASES)]
    if unknown:
        raise SystemExit(f"No case starts with {', '.join(map(repr, unknown))}. Cases:\n" + "\n".join(CASES))
    return [name for name in CASES if not prefixes or name.startswith(tuple(prefixes))]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("commit", help="the version to compare this checkout with")
    parser.add_argument("--cases", nargs="+", default=[], metavar="PREFIX", help="only cases that begin like this")
    parser.add_argument("--repeats", type=int, default=20, help="turns that are timed per case")
    parser.add_argument("--warm-ups", type=int, default=2, help="turns before that, which do not count")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch; default: as torch decides")
    parser.add_argument("--output", type=Path, metavar="JSON", help="file for all times")
    parser.add_argument(
        "--folder", type=Path, help="keep the other commit here, with its compiled kernels; default: a temporary folder"
    )
    options = parser.parse_args(arguments)
    if options.repeats < 1:
        parser.error(f"--repeats must be at least 1, but is {options.repeats}.")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    names, commit = case_names(options.cases), full_name(options.commit)
    found: list[Comparison] = []
    with extracted(commit, options.folder) as source, contextlib.ExitStack() as stack:
        workers = []
        for folder in (CHECKOUT / "src", source):
            workers.append(Worker(folder, options.threads))
            stack.callback(workers[-1].close)
        new, old = workers
        print(f"new: {CHECKOUT}, old: {commit}, {new.threads} threads; the first calls compile kernels.\n", flush=True)
        for name in names:
            found.append(compare(name, new, old, options.repeats, options.warm_ups))
            print(found[-1], flush=True)
    print()
    show(found)
    if options.output is not None:
        cases = [asdict(one) | ({} if one.problem else {"ratio": asdict(one.ratio)}) for one in found]
        results = {"commit": commit, "threads": new.threads, "cases": cases}
        options.output.write_text(json.dumps(results, indent=2) + "\n")
        print(f"wrote {options.output}")
    failed = sum(bool(one.problem) for one in found)
    slower = sum(one.is_slower for one in found)
    not_compared = f", {failed} not compared" if failed else ""
    print(f"{slower} of {len(found) - failed} cases above {SLOWER:.2f}{not_compared}.")


def show(found: Sequence[Comparison]) -> None:
    """Print a table of the comparisons, and the other cases below it."""
    rows = []
    for one in found:
        if not one.problem:
            new, old = (f"{1e3 * statistics.median(times):.3g}" for times in (one.new, one.old))
            ratio = one.ratio
            shown = f"{ratio.value:.2f}", f"{ratio.lower:.2f} to {ratio.upper:.2f}"
            rows.append([one.case, new, old, *shown, "SLOWER" if one.is_slower else ""])
    if rows:
        report.table(["case", "new ms", "old ms", "new / old", "quartiles", ""], rows)
    for one in found:
        if one.problem:
            print(f"{one}\n")


if __name__ == "__main__":
    main()
