"""From a fresh process to the first gradient: with an empty kernel cache, and with a full one."""

from __future__ import annotations

import statistics
import tempfile

from benchmarks import report
from benchmarks.processes import run_fresh


def main(quick: bool = False) -> None:
    with tempfile.TemporaryDirectory() as cache:
        empty = run_fresh("benchmarks.first_steps", NUMBA_CACHE_DIR=cache)
        print("empty cache: measured", flush=True)
        full = [run_fresh("benchmarks.first_steps", NUMBA_CACHE_DIR=cache) for _ in range(1 if quick else 3)]
    medians = {part: statistics.median(run[part] for run in full) for part in empty}
    rows = [[part, f"{empty[part]:.2f}", f"{medians[part]:.2f}"] for part in empty]
    report.table(["seconds", "empty cache", f"full cache, median of {len(full)}"], rows)
    report.save("start", {"empty": empty, "full": full, "quick": quick})


if __name__ == "__main__":
    main()
