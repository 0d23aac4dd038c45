"""Measurements that need a new process: peak memory, and start-up time."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import topomask


class ProcessError(RuntimeError):
    """A process failed; the message is the last line of its output."""


def run_fresh(module: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """Run ``python -m module arguments`` in a new process, and parse the JSON in its last line of output."""
    folders = [str(Path(__file__).parents[1]), str(Path(topomask.__file__).parents[1])]
    path = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=os.environ | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ProcessError(lines[-1])
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def resident_bytes() -> int:
    """Current memory of this process, or its peak if the system does not report it."""
    return _status("VmRSS") or peak_bytes()


def forget_peak() -> bool:
    """Reset the peak that :func:`peak_bytes` returns; return False if the system cannot."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_bytes() -> int:
    """Peak memory of this process, since its start or since :func:`forget_peak`."""
    # The alternative below includes the memory of the parent when it started this process.
    if found := _status("VmHWM"):
        return found
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts kilobytes, macOS bytes.
    return peak if sys.platform == "darwin" else 1024 * peak


def _status(name: str) -> int:
    """A value of Linux's status of this process, in bytes; 0 on other systems."""
    file = Path("/proc/self/status")
    lines = file.read_text().splitlines() if file.is_file() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


def limit_memory(most_bytes: int) -> None:
    """Limit the memory of this process; requests beyond it fail."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, hard))
