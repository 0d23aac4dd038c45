"""Runs that are killed again and again: python -m killed_runs <folder> <seed>.

Everything is imported once, and every run is a fork, which starts at once. Prints the number of kills per run.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

import topomask.train.loop
import training
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


def main(folder: Path, seed: int) -> None:
    torch.set_num_threads(1)
    # What the forks need is loaded once; but they cannot differentiate if this process has.
    evaluate(training.Tiny(), training.make_data(), Classification())
    draw = random.Random(seed)
    start = time.perf_counter()
    assert fork_run(folder / "whole")
    took = time.perf_counter() - start
    lines = int((folder / "whole" / "lines").read_text())
    kills = []
    for name in ("at lines", "at moments"):
        done = False
        kills.append(-1)
        while not done:
            kills[-1] += 1
            # After some kills a run may come to its end.
            last = 0 if kills[-1] == 6 else draw.randrange(1, lines // 2)
            by_line = name == "at lines" or not last
            seconds = 0.0 if by_line else draw.uniform(0, took / 2)
            done = fork_run(folder / name, last if by_line else 0, seconds)
    print(json.dumps(kills))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
