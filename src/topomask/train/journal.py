"""Metrics on disk: one line of JSON per event, and TensorBoard where it is asked for."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


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
