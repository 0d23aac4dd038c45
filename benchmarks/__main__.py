"""Run all benchmarks, or those named: ``python -m benchmarks [name ...]``."""

from __future__ import annotations

import importlib
import sys

ALL = ("calibrate", "couplings", "convergence", "symmetry", "large_graphs", "sampling", "attention")


def main() -> None:
    names = sys.argv[1:] or list(ALL)
    unknown = sorted(set(names) - set(ALL))
    if unknown:
        raise SystemExit(f"There is no benchmark {', '.join(unknown)}. There are: {', '.join(ALL)}.")
    for name in names:
        print(f"# {name}\n")
        importlib.import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    main()
