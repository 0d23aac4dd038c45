"""Runs and studies that are killed at random moments: python -m helpers.kill_storm <folder> <seed> <kills>.

Half of the kills strike a run of training, half a study of `experiments/reproduce` that trains and writes results. A
kill is SIGKILL, SIGTERM or SIGINT, at any moment or while a file is written. After each one, all that was saved before
must be there and whole; whatever comes to its end must have the numbers of one that nothing stopped. Prints the counts.
"""

import json
import os
import random
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from experiments.reproduce import results
from experiments.reproduce.results import ResultFile
from experiments.reproduce.study import Cell, Study, run_study
from helpers import training
from topomask.support import files
from topomask.train import (
    Classification,
    TrainConfig,
    checkpoint,
    evaluate,
    read_checkpoint,
    read_metrics,
    reports,
    run_folder,
)

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
# How processes end by a signal: at once, or after they have saved.
ENDED = {*SIGNALS, *(128 + number << 8 for number in SIGNALS)}
# What writes files: lines of these are where kills strike that strike while something is written.
WRITERS = {module.__file__ for module in (files, checkpoint, run_folder, reports, results)}


@dataclass(frozen=True)
class Data:
    name: str = "tokens"


@dataclass(frozen=True)
class Small:
    """An experiment that trains the small model; see helpers/training.py."""

    train: TrainConfig
    data: Data = field(default_factory=Data)

    def with_seed(self, seed):
        return replace(self, train=replace(self.train, seed=seed))

    def run(self, folder, *, resume, fallback):
        return training.run(folder, self.train, resume=resume, fallback=fallback)

    def measure(self, outcome):
        return outcome.metrics


CELLS = [
    Cell(name, name, Small(replace(training.CONFIG, epochs=2, optim=replace(training.OPTIM, lr=lr))))
    for name, lr in (("slow", 0.01), ("fast", 0.02))
]
STUDY = Study("Small", "small", (), CELLS, (), "slow", seeds=2)


def train(folder: Path) -> None:
    training.run(folder, resume=True)


def study(folder: Path) -> None:
    run_study(STUDY, (0, 1), folder / "results", folder / "runs", say=lambda _: None)


def signal_at_line(number: int, line: int) -> None:
    """Let this process send itself a signal before the n-th line that it executes of what writes files."""
    count = 0

    def trace(frame, event, _argument):
        nonlocal count
        if frame.f_code.co_filename not in WRITERS:
            return None
        count += event == "line"
        if event == "line" and count == line:
            os.kill(os.getpid(), number)
        return trace

    sys.settrace(trace)


def fork(
    work: Callable[[Path], None], folder: Path, number: int = 0, *, seconds: float = 0.0, line: int | None = None
) -> bool:
    """Do something in a fork that gets a signal after some time, or at a line; True where it came to its end."""
    child = os.fork()
    if not child:
        if line is not None:
            signal_at_line(number, line)
        # Its errors are ignored.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            # Lines that are missing from the metrics would be lost; the run of a result that was cut off goes on.
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "The last line of .* was cut off")
            work(folder)
            os._exit(0)
        except KeyboardInterrupt:
            os._exit(128 + signal.SIGINT)
        except SystemExit as stop:
            os._exit(stop.code)
        finally:
            os._exit(1)
    if number and line is None:
        time.sleep(seconds)
        os.kill(child, number)
    status = os.waitpid(child, 0)[1]
    if status and status not in ENDED:
        raise SystemExit(f"What went on in {folder} failed with status {status}.")
    return not status


def saved(folder: Path) -> dict[str, int]:
    """What a folder holds that must not be lost: the step of every run, and results; an error where one is damaged."""
    found = {f"result {run.cell}-{run.seed}": 1 for run in ResultFile(folder / "results", STUDY.folder).runs()}
    for path in folder.rglob("step-*.safetensors"):
        step = read_checkpoint(path).info["step"]
        run = str(path.parents[1])
        found[run] = max(step, found.get(run, 0))
    for path in folder.rglob("best.safetensors"):
        read_checkpoint(path)
    return found


def outcome(folder: Path) -> list:
    """The numbers of all runs and results in a folder, to the last bit, apart from times."""
    runs = ResultFile(folder / "results", STUDY.folder).runs()
    found: list = [(run.cell, run.seed, run.metrics, run.config) for run in runs]
    for path in sorted(folder.rglob("metrics.jsonl")):
        found.append([line | {"time": None} for line in read_metrics(path)])
        checkpoints = path.parent / "checkpoints"
        for file in (max(checkpoints.glob("step-*")), checkpoints / "best.safetensors"):
            content = read_checkpoint(file)
            content.info["state"] |= {"seconds": None, "busy": None}
            tensors = {**content.weights, **content.moments}
            found.append((file.name, content.info, {name: x.numpy().tobytes() for name, x in tensors.items()}))
    return found


def strike(work: Callable[[Path], None], folder: Path, draw: random.Random, kills: int, counts: Counter) -> None:
    """Kill something that goes on again and again, and count what became of it."""
    start = time.perf_counter()
    assert fork(work, folder / "whole")
    longest = time.perf_counter() - start
    expected = outcome(folder / "whole")
    # More than it executes; it shrinks where that is too many.
    most_lines = 4000
    done = 0
    for place in range(10 * kills):
        own = folder / str(place)
        before: dict[str, int] = {}
        # A few kills of each before it may come to its end.
        for _ in range(draw.randint(1, 5)):
            if done == kills:
                break
            number = draw.choice(SIGNALS)
            writing = draw.random() < 0.5
            when = {"line": draw.randrange(1, most_lines)} if writing else {"seconds": draw.uniform(0, longest)}
            if fork(work, own, number, **when):
                counts["ended before the signal"] += 1
                if writing:
                    most_lines = max(100, most_lines * 3 // 4)
                else:
                    longest *= 0.9
                break
            done += 1
            counts["kills"] += 1
            counts[f"kills by {number.name}"] += 1
            counts["kills while a file is written"] += writing
            after = saved(own)
            counts["lost"] += any(after.get(name, 0) < value for name, value in before.items())
            before = after
        assert fork(work, own)
        same = outcome(own) == expected
        counts["gone on to the same numbers" if same else "other numbers"] += 1
        # The lock of the results stays.
        counts["temporary files left"] += len([path for path in own.rglob(".*") if path.suffix != ".lock"])
        if done == kills:
            return


def main(folder: Path, seed: int, kills: int) -> None:
    torch.set_num_threads(1)
    # What the forks need is loaded once; but they cannot differentiate if this process has.
    evaluate(training.Tiny(), training.make_data(), Classification())
    draw, counts = random.Random(seed), Counter({"lost": 0, "other numbers": 0})
    strike(train, folder / "run", draw, kills // 2, counts)
    strike(study, folder / "study", draw, kills - kills // 2, counts)
    print(json.dumps(counts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
