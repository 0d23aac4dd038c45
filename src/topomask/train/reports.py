"""Reports of a run: metrics on disk, and progress on the terminal."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from topomask.support.files import explained, parse_json, write_content
from topomask.support.imports import installed, need

# Keeps the logs of long runs readable; the metrics file has every line.
_SECONDS_BETWEEN_LINES = 5.0


class Journal:
    """Writes ``metrics.jsonl``, and flushes every line.

    A line has ``event``, ``step`` and ``epoch``, the metrics, and under ``time`` the values that vary between runs.

    Args:
        path: The file; None writes nothing, for all processes but the first.
        step: The step that the run resumes from; later lines are removed.
        tensorboard: Folder for TensorBoard, or None.
    """

    def __init__(self, path: Path | None, step: int = 0, tensorboard: Path | None = None) -> None:
        # Lines that stay, and the number of removed lines: beyond the step, and damaged.
        self.kept: list[dict[str, Any]] = []
        self.beyond = self.damaged = 0
        self.path = path
        self._file = None if path is None else self._open(path, step)
        self._writer = None if path is None or tensorboard is None else _tensorboard(tensorboard, step)

    def _open(self, path: Path, step: int) -> Any:
        """Open the file after removing damaged lines and those beyond the step."""
        path.touch()
        content = path.read_bytes()
        found, self.damaged = _lines(content)
        self.kept = [line for line, _ in found if line["step"] <= step]
        self.beyond = len(found) - len(self.kept)
        kept = b"".join(text for line, text in found if line["step"] <= step)
        if not content.startswith(kept):
            # Some lines to remove are between lines that stay, so truncating is not enough.
            write_content(path, kept)
        # Unbuffered, so that every line is written at once.
        file = path.open("r+b", buffering=0)
        file.truncate(len(kept))
        file.seek(len(kept))
        return file

    def write(
        self, event: str, step: int, epoch: float, values: Mapping[str, float], time: Mapping[str, float]
    ) -> None:
        """Add a line."""
        if self._file is not None and self.path is not None:
            line = {"event": event, "step": step, "epoch": epoch, **values, "time": dict(time)}
            text = (json.dumps(_plain(line), allow_nan=False) + "\n").encode()
            try:
                while text:
                    # If the disk is nearly full, only a part is written.
                    text = text[self._file.write(text) :]
            except OSError as error:
                raise explained(error, self.path) from None
        if self._writer is not None:
            for name, value in {**values, **time}.items():
                self._writer.add_scalar(f"{event}/{name}", value, step)

    def sync(self) -> None:
        """Flush all lines to disk: a checkpoint must not be ahead of the journal."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the files."""
        for file in (self._file, self._writer):
            if file is not None:
                file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the intact lines of a metrics file as dicts."""
    return [line for line, _ in _lines(path.read_bytes())[0]]


def _lines(content: bytes) -> tuple[list[tuple[dict[str, Any], bytes]], int]:
    """Intact lines, each with its text, and the number of damaged lines."""
    texts = content.splitlines(keepends=True)
    found = [(_line(text), text) for text in texts]
    whole = [(line, text) for line, text in found if line is not None]
    return whole, len(texts) - len(whole)


def _line(text: bytes) -> dict[str, Any] | None:
    """Parse a line that :meth:`Journal.write` wrote; None if it is damaged."""
    try:
        line = parse_json(text)
    except ValueError:
        return None
    if not text.endswith(b"\n") or not isinstance(line, dict):
        return None
    values = [value for name, value in line.items() if name not in ("event", "time")]
    event, step, times = line.get("event"), line.get("step"), line.get("time", {})
    if not isinstance(event, str) or type(step) is not int or step < 0 or not isinstance(times, dict):
        return None
    if line.get("epoch") is None or not all(value is None or _is_number(value) for value in (*values, *times.values())):
        return None
    return line


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _tensorboard(folder: Path, step: int) -> Any:
    need("tensorboard", "`tensorboard=True`")
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=step + 1)


def _plain(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by None."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Progress:
    """Shows progress from ``step`` to ``total``: a bar on a terminal if rich is installed, plain lines otherwise."""

    def __init__(self, total: int, step: int = 0, enabled: bool = True) -> None:
        self.total, self.first, self.enabled = total, step, enabled
        self.start = time.perf_counter()
        self.shown = -math.inf
        self._bar = _bar(total, step) if enabled and sys.stdout.isatty() else None

    def advance(self, step: int) -> None:
        """Move to a step."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=step)

    def announce(self, step: int, text: str) -> None:
        """Show what comes after a step: next to the bar, or on a line."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], description=text)
        else:
            self.note(f"{step + 1}/{self.total}  {text}")

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
    if not installed("rich"):
        return None
    from rich import progress

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
