"""List and run benchmarks: ``topomask bench`` or ``python -m benchmarks``."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

ALL = (
    "calibrate",
    "couplings",
    "convergence",
    "symmetry",
    "large_graphs",
    "sampling",
    "frontiers",
    "attention",
    "peers",
    "scaling",
    "points",
    "growth",
    "grids",
    "forests",
    "mask_costs",
    "vit",
    "interlacer",
    "node_training",
    "strategies",
    "small",
    "start",
)


def show() -> None:
    """Print every benchmark with the first sentence of its file."""
    for name in ALL:
        text = ast.get_docstring(ast.parse((Path(__file__).parent / f"{name}.py").read_text())) or ""
        print(f"{name:14s} {text.splitlines()[0]}")


def run(names: Sequence[str], *, quick: bool = False) -> None:
    """Run the named benchmarks, or all, one after another; a failure does not stop the others."""
    names = names or ALL
    unknown = sorted(set(names) - set(ALL))
    if unknown:
        raise SystemExit(f"There is no benchmark {', '.join(unknown)}. Benchmarks: {', '.join(ALL)}.")
    if os.getloadavg()[0] > 0.5 * (os.cpu_count() or 1):
        print(f"The machine is busy (load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores): times will be noisy.\n")
    failed, start = [], time.perf_counter()
    for number, name in enumerate(names, 1):
        print(f"# {name} ({number} of {len(names)})\n", flush=True)
        begin = time.perf_counter()
        try:
            benchmark = importlib.import_module(f"benchmarks.{name}").main
            # Not all benchmarks have a quick version.
            benchmark(**({"quick": True} if quick and "quick" in inspect.signature(benchmark).parameters else {}))
        except Exception:
            traceback.print_exc()
            failed.append(name)
        print(f"{name} took {time.perf_counter() - begin:.0f} s\n", flush=True)
    print(f"{time.perf_counter() - start:.0f} s in total.")
    if failed:
        raise SystemExit(f"Failed: {', '.join(failed)}.")


if __name__ == "__main__":
    from topomask.cli import main

    main(["bench", *sys.argv[1:]])
