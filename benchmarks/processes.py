"""Measurements that need a process of their own: peak memory, and what happens at the start."""

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
    """A process that did not come to its end; the message is the last line it wrote."""


def run_fresh(module: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """Run ``python -m module arguments`` in a new process and read the JSON that it prints last."""
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
    """The memory that this process holds now; where the system does not say, the most so far."""
    return _status("VmRSS") or peak_bytes()


def forget_peak() -> bool:
    """Let :func:`peak_bytes` count from now on, where the system can; False elsewhere."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_bytes() -> int:
    """The most memory that this process has held so far, or since :func:`forget_peak`."""
    # The other way also counts what the parent held when it started this process.
    if found := _status("VmHWM"):
        return found
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts kilobytes, macOS bytes.
    return peak if sys.platform == "darwin" else 1024 * peak


def _status(name: str) -> int:
    """A line of what Linux says of this process, in bytes; 0 elsewhere."""
    file = Path("/proc/self/status")
    lines = file.read_text().splitlines() if file.is_file() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


def limit_memory(most_bytes: int) -> None:
    """Let this process fail when it asks for more."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, hard))
