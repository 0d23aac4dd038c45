"""Runs that are killed again and again: python -m helpers.killed_runs <folder> <seed>.

Everything is imported once, and every run is a fork, which starts at once. Prints the number of kills per run.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

import topomask.train.loop
from helpers import training
from topomask.train import Classification, evaluate

_SOURCE = os.path.dirname(topomask.train.loop.__file__)


def fork_run(folder: Path, last_line: int = 0, seconds: float = 0.0) -> bool:
    """Run or go on in a fork; True where it came to its end.

    It is killed before the ``last_line``-th line of topomask/train that it executes, or after ``seconds``, if given.
    """
    child = os.fork()
    if not child:
        count = 0

        def trace(frame, event, _argument):
            nonlocal count
            if not frame.f_code.co_filename.startswith(_SOURCE):
                return None
            count += event == "line"
            if event == "line" and count == last_line:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        try:
            training.run(folder, resume=True)
            folder.joinpath("lines").write_text(str(count))
            os._exit(0)
        finally:
            sys.settrace(None)
            # Not what is buffered by the parent, nor its handlers.
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    if seconds:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if status not in (0, signal.SIGKILL):
        raise SystemExit(f"The run in {folder} failed.")
    return status == 0


def kill_often(folder: Path, draw_end: Callable[[], dict]) -> int:
    """Go on with a run that is killed, up to 6 times, until it comes to its end; the number of kills."""
    for kills in range(6):
        if fork_run(folder, **draw_end()):
            return kills
    assert fork_run(folder)
    return 6


def draw_seconds(draw: random.Random, longest: float) -> dict:
    return {"seconds": draw.uniform(0, longest)}


def main(folder: Path, seed: int) -> None:
    torch.set_num_threads(1)
    # What the forks need is loaded once; but they cannot differentiate if this process has.
    evaluate(training.Tiny(), training.make_data(), Classification())
    draw = random.Random(seed)
    start = time.perf_counter()
    assert fork_run(folder / "whole")
    took = time.perf_counter() - start
    lines = int((folder / "whole" / "lines").read_text())
    at_lines = kill_often(folder / "at lines", lambda: {"last_line": draw.randrange(1, lines // 2)})
    at_moments, longest = 0, took
    while at_moments < 2:
        # If the machine is faster now, runs may end before they are killed: try again, and kill them sooner.
        shutil.rmtree(folder / "at moments", ignore_errors=True)
        longest /= 2
        at_moments = kill_often(folder / "at moments", partial(draw_seconds, draw, longest))
    print(json.dumps([at_lines, at_moments]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
