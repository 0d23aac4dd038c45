"""What the processes of the long form do."""

from __future__ import annotations

import os

from fuzz.runner import Report, run_case

# Seed, first index and the one after the last, and the mask and the kind of graph where only one is wanted.
Task = tuple[int, int, int, str | None, str | None]


def start(backend: str, threads: int) -> None:
    """Set a process up, before its first case."""
    os.environ["TOPOMASK_BACKEND"] = backend
    # Plans are those of the constants that are shipped, not of the machine's own.
    os.environ["TOPOMASK_COSTS"] = os.devnull + ".missing"
    import torch

    torch.set_num_threads(threads)


def run(task: Task) -> Report:
    """Run some cases."""
    seed, first, last, mask, graph = task
    total = Report()
    for index in range(first, last):
        total.add(run_case(seed, index, mask, graph))
    return total
