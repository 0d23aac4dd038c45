"""What a run reports: metrics on disk, and progress on the terminal."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Logs of long runs should stay readable; all lines of training are in the metrics anyway.
_SECONDS_BETWEEN_LINES = 5.0


class Journal:
    """Writes ``metrics.jsonl``, every line flushed.

    A line has ``event``, ``step`` and ``epoch``, the metrics, and under ``time`` what differs from run to run.

    Args:
        path: The file; None writes nothing, in processes other than the first.
        step: The step that the run goes on from; lines beyond it are cut off.
        tensorboard: Folder for TensorBoard, or None.
    """

    def __init__(self, path: Path | None, step: int = 0, tensorboard: Path | None = None) -> None:
        self._file = None if path is None else _cut(path, step)
        self._writer = None if path is None or tensorboard is None else _tensorboard(tensorboard, step)

    def write(
        self, event: str, step: int, epoch: float, values: Mapping[str, float], time: Mapping[str, float]
    ) -> None:
        """Add a line."""
        if self._file is not None:
            line = {"event": event, "step": step, "epoch": epoch, **values, "time": dict(time)}
            self._file.write((json.dumps(_plain(line), allow_nan=False) + "\n").encode())
        if self._writer is not None:
            for name, value in {**values, **time}.items():
                self._writer.add_scalar(f"{event}/{name}", value, step)

    def sync(self) -> None:
        """Make sure that all lines are on disk: a checkpoint must not know more than the journal."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the files."""
        for file in (self._file, self._writer):
            if file is not None:
                file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file that are whole, as dicts."""
    return [line for line, _ in _lines(path)]


def _lines(path: Path) -> list[tuple[dict[str, Any], int]]:
    """Whole lines, and where each ends in the file."""
    lines, end = [], 0
    for text in path.read_bytes().splitlines(keepends=True):
        end += len(text)
        try:
            line = json.loads(text)
        except ValueError:
            break
        if not text.endswith(b"\n") or not isinstance(line, dict):
            break
        lines.append((line, end))
    return lines


def _cut(path: Path, step: int) -> Any:
    """The file, open at the end of the last line that is not beyond the step."""
    path.touch()
    kept = 0
    for line, end in _lines(path):
        if line["step"] > step:
            break
        kept = end
    # Unbuffered, so that a line is written at once or not at all.
    file = path.open("r+b", buffering=0)
    file.truncate(kept)
    file.seek(kept)
    return file


def _tensorboard(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ModuleNotFoundError(
            "`tensorboard` is True, but it is not installed. Install it with: pip install 'topomask[tensorboard]'",
            name="tensorboard",
        ) from None
    return SummaryWriter(str(folder), purge_step=step + 1)


def _plain(value: Any) -> Any:
    """With None for numbers that are not finite, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Progress:
    """Shows how far a run is.

    Args:
        total: Steps in all.
        step: The step that the run goes on from.
        enabled: Whether to show anything.
    """

    def __init__(self, total: int, step: int = 0, enabled: bool = True) -> None:
        self.total, self.first, self.enabled = total, step, enabled
        self.start = time.perf_counter()
        self.shown = -math.inf
        self._bar = _bar(total, step) if enabled and sys.stdout.isatty() else None

    def advance(self, step: int) -> None:
        """Move on to a step."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=step)

    def line(self, event: str, step: int, values: Mapping[str, float]) -> None:
        """Show the metrics of an event."""
        text = f"{event:5s} " + "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        if self._bar is None:
            now = time.perf_counter()
            if event == "train" and now - self.shown < _SECONDS_BETWEEN_LINES:
                return
            self.shown = now
            left = (now - self.start) / max(1, step - self.first) * (self.total - step)
            self.note(f"step {step}/{self.total}  {text}  ({_clock(left)} left)")
        elif event == "train":
            self._bar.update(self._bar.task_ids[0], description=text)
        else:
            self.note(f"step {step}  {text}")

    def note(self, text: str) -> None:
        """Show a line of text."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        elif self.enabled:
            print(text, flush=True)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar(total: int, step: int) -> Any:
    try:
        from rich import progress
    except ModuleNotFoundError:
        return None
    columns = (
        progress.BarColumn(bar_width=24),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.description}", markup=False),
    )
    bar = progress.Progress(*columns)
    bar.add_task("", total=total, completed=step)
    return bar


def _clock(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
