"""Plant faults in a copy of the source, one at a time, and see after how many cases the fuzzer catches each.

``python -m tests.fuzz.planted`` prints a table; a fault that stays unseen, or whose place is gone, is an error.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
SOURCE = TESTS.parent / "src"
sys.path.insert(0, str(TESTS))

from fuzz.faults import FAULTS, Fault  # noqa: E402

# Cases that a fault has to be caught in.
CASES, SEED = 600, 7


def plant(fault: Fault | None, folder: Path) -> Path:
    """A copy of the source with a fault in it, or as it is; compiled kernels of other files are kept."""
    source = Path(shutil.copytree(SOURCE, folder / "src"))
    if fault is None:
        return source
    path = source / "topomask" / fault.file
    text = path.read_text()
    if text.count(fault.old) != 1:
        raise ValueError(
            f"The fault {fault.name!r} must replace one piece of {fault.file}, but {fault.old!r} is there "
            f"{text.count(fault.old)} times. Update tests/fuzz/faults.py."
        )
    path.write_text(text.replace(fault.old, fault.new))
    _keep_kernels(source, fault)
    return source


def _keep_kernels(source: Path, fault: Fault) -> None:
    """Let kernels of other ops be found in the cache, whose names have a hash of all sources."""
    from topomask.ops import backend

    layer, op = fault.file.split("/")[:2]
    for kept in (source / "topomask" / layer / op).rglob("*.nbi") if layer == "ops" else ():
        kept.unlink()

    path = source / "topomask" / "ops" / "backend.py"
    stamp, text = path.stat(), path.read_text()
    head = "def _source_digest() -> str:\n"
    if text.count(head) == 1:
        path.write_text(text.replace(head, f'{head}    return "{backend._source_digest()}"\n'))
        os.utime(path, (stamp.st_atime, stamp.st_mtime))


def failing_cases(source: Path, backend: str, count: int) -> Generator[int, None, None]:
    """Numbers of cases that fail on a source, as they come; -1 where the process dies."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(source), str(TESTS)]),
        "TOPOMASK_BACKEND": backend,
        "TOPOMASK_COSTS": os.devnull + ".missing",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "fuzz.planted", "--worker", "--cases", str(count)]
    with subprocess.Popen(
        command, env=environment, cwd=source, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if re.fullmatch(r"\d+\n", line):
                    yield int(line)
            if process.wait() != 0:
                yield -1
        finally:
            process.kill()


def catch(fault: Fault, known: set[int], count: int = CASES) -> int | None:
    """After how many cases a fault is caught; None where it is not. Cases that fail without it do not count."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(failing_cases(plant(fault, Path(folder)), fault.backend, count)) as failing,
    ):
        return next((index + 1 for index in failing if index not in known), None)


def baseline(backend: str, count: int = CASES) -> set[int]:
    """Cases that fail without any fault planted: none, where the library is right."""
    return set(failing_cases(SOURCE, backend, count))


def _work(count: int) -> None:
    import torch

    from fuzz.runner import run_case

    torch.set_num_threads(1)
    for index in range(count):
        if run_case(SEED, index).failures:
            print(index, flush=True)


def main() -> int:
    """Plant all faults, or those whose name has a word in it, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.planted", description=__doc__)
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--word", default="", help="only faults whose name has this word")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _work(options.cases)
        return 0
    faults = [fault for fault in FAULTS if options.word in fault.name]
    with ThreadPoolExecutor(options.processes) as pool:
        backends = sorted({fault.backend for fault in faults})
        known = dict(zip(backends, pool.map(lambda name: baseline(name, options.cases), backends), strict=True))
        for name, found in known.items():
            print(f"backend {name}: {len(found)} of {options.cases} cases fail without a fault", flush=True)
        print(f"| {'fault':<75} | {'file':<36} | caught after |\n|---|---|---|")
        results = pool.map(lambda fault: catch(fault, known[fault.backend], options.cases), faults)
        unseen = 0
        for fault, found in zip(faults, results, strict=True):
            text = "NOT CAUGHT" if found is None else "the process died" if found == 0 else f"{found} cases"
            unseen += found is None
            print(f"| {fault.name:<75} | {fault.file:<36} | {text} |", flush=True)
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main())
